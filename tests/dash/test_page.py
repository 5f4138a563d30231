"""The page in a real browser."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from urllib.parse import parse_qs

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra dash is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from roboloop.data.store import StoreWriter
from roboloop.track.metrics import delay_counts
from roboloop.track.read import read_run
from roboloop.track.video import write_video
from tests.dash.browser import chromium, needs_chromium, served
from tests.dash.kit import make_run
from tests.data.kit import episode_of, schema_of

pytestmark = needs_chromium
EVIL = "<img src=x onerror=document.title='evil'>"
_LONG_MS = 60_000


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(url, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(_LONG_MS)
        page.troubles = []
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()


def drawn(page, lines):
    page.wait_for_selector(f'.chart[data-lines="{lines}"]')


def until(holds):
    """Wait from here: what Playwright waits for inside the page is evaluated there, which the page's policy forbids."""
    end_s = time.monotonic() + _LONG_MS / 1e3
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_runs_are_listed_searched_and_reached_by_keys(tmp_path, open_page):
    for name in ("sac/reach/0", "sac/reach/1", "ppo/push/0"):
        make_run(tmp_path, name, state="failed" if name.startswith("ppo") else "done")
    make_run(tmp_path, f"{EVIL}/t/0")
    with served(tmp_path) as url:
        page = open_page(url)
        page.wait_for_selector("#rows tr >> nth=3")
        assert "token" not in page.url
        assert EVIL in page.inner_text("#rows")
        assert page.title() == "roboloop dash"  # the name was shown, not run
        assert page.locator("#rows img").count() == 0
        page.keyboard.press("/")
        page.keyboard.type("sac 1")
        assert page.locator("#rows tr").count() == 1
        page.keyboard.press("Enter")
        page.fill("#search", "")
        page.select_option("#state", "failed")
        assert page.inner_text("#rows td.name") == "ppo/push/0"
        page.select_option("#state", "")
        page.locator("h1").click()
        page.keyboard.press("j")
        page.keyboard.press("k")
        page.keyboard.press("j")
        chosen = page.inner_text('#rows tr[aria-current="true"] td.name')
        page.keyboard.press("Enter")
        assert page.inner_text("#detail h2.title") == chosen
        page.keyboard.press("Escape")
        page.wait_for_selector("#view", state="visible")
        page.keyboard.press("?")
        page.wait_for_selector("#help[open]")
        assert page.troubles == []


def test_all_of_it_is_reached_by_tab_enter_and_space(tmp_path, open_page):
    make_run(tmp_path, "sac/reach/0")
    make_run(tmp_path, "sac/reach/1")
    with served(tmp_path) as url:
        page = open_page(url)
        page.get_by_role("button", name="sac/reach/1").focus()
        page.keyboard.press(" ")
        until(lambda: not page.get_by_label("draw sac/reach/1").is_checked())
        page.keyboard.press("k")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail summary")
        assert page.inner_text("#detail h2.title") == "sac/reach/1"
        assert page.evaluate("document.activeElement.className") == "title"
        page.locator("#detail summary", has_text="settings").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail details[open] >> text=algo.lr")
        assert not page.get_by_label("draw sac/reach/1").is_checked()  # the key was not taken twice
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.textContent") == "sac/reach/1"
        assert page.troubles == []


def test_values_that_only_rounding_tells_apart_are_a_level_line(tmp_path, open_page):
    values = [0.1, 0.1 * 3 / 3, 0.1]
    assert len(set(values)) > 1
    make_run(tmp_path, rows=[{"step": i, "eval/return": 2000 * value} for i, value in enumerate(values)])
    with served(tmp_path) as url:
        page = open_page(url)
        drawn(page, 1)
        page.click("#rows tr")
        page.wait_for_selector("#detail .chart[data-drawn]")
        assert page.evaluate("1 + 1") == 2  # the page still answers
        assert page.troubles == []


def test_charts_of_runs_that_were_closed_are_let_go_and_all_follow_the_theme(tmp_path, open_page):
    make_run(tmp_path)
    with served(tmp_path) as url:
        page = open_page(url)
        session = page.context.new_cdp_session(page)
        drawn(page, 1)
        for _ in range(6):
            page.click("#rows tr")
            page.locator("#detail .chart[data-drawn]").nth(1).wait_for()
            page.keyboard.press("Escape")
        session.send("HeapProfiler.collectGarbage")
        kind = session.send(
            "Runtime.evaluate", {"expression": "document.querySelector('canvas').chart.constructor.prototype"}
        )
        alive = session.send("Runtime.queryObjects", {"prototypeObjectId": kind["result"]["objectId"]})["objects"]
        assert int(re.search(r"\d+", alive["description"])[0]) <= 4  # the page's own, and those of the run closed last
        before = page.evaluate("document.querySelector('#legend .swatch').style.background")
        page.emulate_media(color_scheme="dark")
        until(lambda: page.evaluate("document.querySelector('#legend .swatch').style.background") != before)


def test_without_the_token_nothing_is_shown(tmp_path, open_page):
    make_run(tmp_path)
    with served(tmp_path) as url:
        page = open_page(url.partition("#")[0])
        page.wait_for_selector("#trouble:not([hidden])")
        assert "roboloop dash printed" in page.inner_text("#trouble")
        assert page.locator("#rows tr").count() == 0


def test_runs_are_overlaid_grouped_smoothed_and_differ(tmp_path, open_page):
    for seed in range(3):
        make_run(tmp_path, f"sac/reach/{seed}")
    other = make_run(
        tmp_path,
        "ppo/reach/0",
        [{"step": i, "updates": i, "train/return": 2.0 * i, "train/return/a": 1.0} for i in range(9)],
    )
    (other / "config.yaml").write_text("experiment: ppo\nsteps: 1000\nalgo: {lr: 0.5}\n")
    with served(tmp_path) as url:
        page = open_page(url)
        drawn(page, 2)  # two groups
        assert "sac/reach (3 seeds)" in page.inner_text("#legend")
        page.uncheck("#group")
        drawn(page, 4)
        page.check("#log")
        page.select_option("#x", "wall")
        page.locator("#smoothing").fill("0.6")
        drawn(page, 4)
        page.check("#tasks")
        page.wait_for_selector(".chart >> nth=1")
        page.uncheck("#tasks")
        page.get_by_label("draw ppo/reach/0").uncheck()
        drawn(page, 3)
        box = page.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.wait_for_selector(".tip:not([hidden])")
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 100)
        page.mouse.up()
        page.get_by_label("draw ppo/reach/0").check()
        page.click("#compare")
        assert "algo.lr" in page.inner_text("table.diff")
        assert page.troubles == []


def test_a_film_plays(tmp_path, open_page):
    run = make_run(tmp_path)
    write_video((np.full((64, 64, 3), 8 * i, np.uint8) for i in range(30)), run / "videos" / "evaluation.mp4", 15)
    with served(tmp_path) as url:
        page = open_page(url)
        page.click("#rows tr")
        page.wait_for_selector("#detail video")
        played = page.evaluate(
            """async () => {
                const film = document.querySelector("#detail video");
                await film.play();
                const late = (done) => film.addEventListener("timeupdate", () => film.currentTime > 0.2 && done());
                await new Promise(late);
                return [film.videoWidth, film.error === null, film.currentTime > 0.2];
            }"""
        )
        assert played == [64, True, True]


def test_one_run_shows_its_tasks_its_ticks_what_it_takes_and_what_it_recorded(tmp_path, open_page):
    rows = [{"step": i, "train/return": 1.0, "choice/reach": 0.75, "choice/lift": 0.25} for i in range(9)]
    run = make_run(tmp_path, rows=rows)
    late = {"sample/lateness_ticks": delay_counts([0.2] * 7 + [3.0] * 2)}
    takes = {"steps_per_s": 50.0, "cores_used": 1.5, "memory_mb": 300.0}
    lines = ({"step": i, "wall_s": i, **late, **takes} for i in range(9))
    (run / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with StoreWriter(run / "dataset", schema_of("pictures")) as writer:
        writer.append(*episode_of(0, length=9, kind="pictures"))
    with served(tmp_path) as url:
        page = open_page(url)
        page.click("#rows tr")
        page.wait_for_selector("#detail details")
        shown = page.inner_text("#detail")
        assert "which task acted" in shown
        assert re.search(r"reach\s+0\.75\s+lift\s+0\.25", shown)
        assert "real-time latency of 81 ticks" in shown
        until(lambda: page.evaluate("document.querySelector('#detail img.sheet').naturalWidth") > 0)
        charts = page.locator("#detail .chart[data-drawn]")
        assert charts.count() == 6  # progress, tasks, ticks, speed, cores, memory
        assert charts.nth(0).locator("h3").inner_text() == "return"
        assert page.troubles == []


def test_a_dataset_that_has_no_pictures_yet_shows_them_when_they_come(tmp_path, open_page):
    run = make_run(tmp_path, state="running")
    with StoreWriter(run / "dataset", schema_of("pictures")) as writer, served(tmp_path) as url:
        writer.commit()
        page = open_page(url)
        page.click("#rows tr")
        page.wait_for_selector("text=no pictures to show")
        assert page.locator("#detail img.sheet").is_hidden()
        writer.append(*episode_of(0, length=9, kind="pictures"))
        writer.commit()
        page.wait_for_selector("#detail img.sheet", state="visible")
        assert page.locator("text=no pictures to show").is_hidden()


def test_an_open_run_is_followed_and_what_did_not_change_is_left_alone(tmp_path, open_page):
    rows = [{"step": i, "train/return": 1.0, "choice/reach": 1.0} for i in range(9)]
    run = make_run(tmp_path, rows=rows, state="running")
    write_video((np.full((64, 64, 3), 8 * i, np.uint8) for i in range(30)), run / "videos" / "early.mp4", 15)
    with served(tmp_path) as url:
        page = open_page(url)
        page.click("#rows tr")
        page.wait_for_selector("#detail video")
        page.evaluate("window.film = document.querySelector('#detail video'); film.play()")
        page.click("#detail summary >> nth=0")  # the settings are unfolded, and have the focus
        assert page.locator("#detail figure").count() == 1
        page.set_viewport_size({"width": 1280, "height": 300})
        page.evaluate("document.activeElement.scrollIntoView()")  # all that is to come is above what is looked at
        at = page.locator("#detail summary >> nth=0").bounding_box()["y"]

        Image.new("RGB", (8, 8)).save(run / "videos" / "late.png")
        (run / "eval").mkdir()
        header = {"checkpoint_step": 100, "plan": {"episodes": 1, "split": "test", "seed": 0}}
        lines = [header, {"return": 3.0, "success": 1.0}]
        (run / "eval" / "step-100.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        with open(run / "metrics.jsonl", "a") as log:
            log.write(json.dumps({"step": 9, "eval/return": 2.0, "choice/reach": 0.5, "choice/lift": 0.5}) + "\n")
        with open(run / "timing.jsonl", "a") as log:
            ticks = {"sample/lateness_ticks": delay_counts([0.2] * 7)}
            log.write(json.dumps({"step": 9, "wall_s": 60.0, "collect_s": 30.0, "steps_per_s": 5.0, **ticks}) + "\n")

        until(lambda: page.locator("#detail figure").count() == 2)
        page.wait_for_selector("#detail table.evaluations")
        page.wait_for_selector("text=real-time latency of 7 ticks")
        shown = page.inner_text("#detail")
        assert re.search(r"test\s+100\s+1\s+1/1", shown)
        assert re.search(r"reach\s+0\.5\s+lift\s+0\.5", shown)
        assert re.search(r"collect\s+30 s\s+50 %", shown)
        assert re.search(r"return\s+evaluations\s+episodes of training", shown)
        assert page.locator("#detail figcaption >> nth=0").inner_text().startswith("videos/late.png")
        assert page.evaluate("film.isConnected && !film.paused && film.currentTime > 0")
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("document.activeElement.parentElement.open")
        assert page.locator("#detail summary >> nth=0").bounding_box()["y"] == pytest.approx(at, abs=2)
        assert page.troubles == []


def test_fingers_zoom_a_chart_and_still_scroll_the_page(tmp_path, open_page):
    make_run(tmp_path)  # of steps 0 to 190
    with served(tmp_path) as url:
        page = open_page(url, has_touch=True)
        page.set_viewport_size({"width": 380, "height": 500})
        drawn(page, 1)
        page.locator("canvas").scroll_into_view_if_needed()
        box = page.locator("canvas").bounding_box()
        screen = page.context.new_cdp_session(page)

        def touch(kind, *places):
            points = [{"x": box["x"] + x, "y": box["y"] + y, "id": i} for i, (x, y) in enumerate(places)]
            screen.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        def asked():
            urls = page.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
            return parse_qs([url for url in urls if "/api/curves" in url][-1])

        touch("touchStart", (150, 90))
        touch("touchStart", (150, 90), (200, 90))
        for apart in range(10, 51, 10):
            touch("touchMove", (150 - apart, 90), (200 + apart, 90))
        touch("touchEnd")
        until(lambda: "low" in asked())
        low, high = (float(asked()[end][0]) for end in ("low", "high"))
        assert 0 < low < high < 190
        assert high - low == pytest.approx(190 / 3, rel=0.01)  # the fingers are three times as far apart

        page.touchscreen.tap(box["x"] + 180, box["y"] + 90)
        page.touchscreen.tap(box["x"] + 180, box["y"] + 90)
        until(lambda: "low" not in asked())

        before = page.evaluate("scrollY")
        touch("touchStart", (180, 90))
        for down in range(10, 101, 10):
            touch("touchMove", (180, 90 + down))
        touch("touchEnd")
        until(lambda: page.evaluate("scrollY") < before - 50)
        assert "low" not in asked()
        assert page.troubles == []


def test_it_is_usable_on_a_phone_and_in_the_dark(tmp_path, open_page):
    make_run(tmp_path, "a-rather-long-experiment-name/with-a-long-task/0")
    with served(tmp_path) as url:
        page = open_page(url, color_scheme="dark")
        page.set_viewport_size({"width": 380, "height": 700})
        drawn(page, 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"
        page.click("#rows tr")
        page.wait_for_selector("#detail h2.title")
        assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_all_columns_of_differences_have_their_headings_on_a_phone(tmp_path, open_page):
    for seed in range(8):
        path = make_run(tmp_path, f"sac/reach/{seed}")
        (path / "config.yaml").write_text(f"experiment: sac\nalgo: {{lr: {seed}}}\n")
    with served(tmp_path) as url:
        page = open_page(url)
        page.set_viewport_size({"width": 380, "height": 700})
        page.wait_for_selector("#rows tr >> nth=7")
        page.click("#compare")
        page.wait_for_selector("table.diff")
        assert page.locator("table.diff th:visible").count() == page.locator("table.diff td:visible").count() == 9


def test_a_training_run_is_followed_stopped_and_resumed(tmp_path, open_page):
    flags = (
        "--env tiny/point --experiment live --steps 100000000 --warmup-steps 50 --log-every-steps 100 --eval.episodes 0"
        " --replay.capacity 1000 --algo.hidden 8 8 --algo.batch-size 8 --algo.processes 1 --checkpoint.every-steps 5000"
    ).split()
    command = [sys.executable, "-m", "roboloop.cli", "train", *flags, "--runs-dir", str(tmp_path)]
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
    run = tmp_path / "live" / "point" / "0"
    try:
        with served(tmp_path) as url:
            page = open_page(url)
            page.wait_for_selector("#rows td.running")
            drawn(page, 1)
            first = page.inner_text("#rows td:nth-child(4)")
            until(lambda: page.inner_text("#rows td:nth-child(4)") != first)
            page.click("#rows tr")
            page.click("button.stop")
            page.wait_for_selector("#detail span.stopped")
            assert process.wait(30) == 4
            stopped_at = read_run(run).step
            page.click("button.resume")
            page.wait_for_selector("#detail span.running")
            until(lambda: "resumed at step" in page.inner_text("#detail pre"))
            until(lambda: read_run(run).step > stopped_at)
            page.click("button.stop")
            page.wait_for_selector("#detail span.stopped")
            assert page.troubles == []
    finally:
        process.kill()
        status = json.loads((run / "status.json").read_text()) if (run / "status.json").exists() else {}
        if status.get("state") == "running" and status["pid"] != process.pid:
            os.kill(status["pid"], signal.SIGKILL)
