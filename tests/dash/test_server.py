"""What the page is told: runs, curves as they grow, logs, differences; and that its buttons act as the commands do."""

import io
import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the extra dash is not installed")

from roboloop.core.files import take_lock
from roboloop.dash.series import Logs, smooth, thin, values
from roboloop.dash.server import read_in_background
from roboloop.data.store import StoreWriter
from roboloop.launch.job import Job
from roboloop.track.metrics import delay_counts
from tests.dash.kit import ORIGIN, client, make_run, run_id
from tests.data.kit import KINDS, episode_of, schema_of
from tests.launch.kit import Sweep, wait_until


def curves(page, *runs, **query):
    ids = ",".join(map(run_id, runs))
    return page.get("/api/curves", params={"runs": ids, "key": "train/return", **query})


def test_runs_are_listed_with_their_states(tmp_path):
    make_run(tmp_path)
    make_run(tmp_path, "sac/reach/1", state="failed")
    rows = client(tmp_path).get("/api/runs").json()["runs"]
    assert [(row["name"], row["state"], row["step"]) for row in rows] == [
        ("sac/reach/0", "done", 190),
        ("sac/reach/1", "failed", 190),
    ]


def test_a_curve_grows_with_its_log_and_only_by_whole_lines(tmp_path):
    run = make_run(tmp_path)
    page = client(tmp_path)
    first = curves(page, run).json()
    assert first["lines"][0]["y"] == [float(i) for i in range(20)]
    assert curves(page, run, known=first["version"]).status_code == 204
    with open(run / "metrics.jsonl", "a") as log:
        log.write('{"step": 200, "train/return": 7.0}\n{"step": 210, "train/re')
    second = curves(page, run, known=first["version"]).json()
    assert second["lines"][0]["y"][-1] == 7.0
    assert len(second["lines"][0]["y"]) == 21


def test_a_log_that_a_resume_cut_and_that_grew_past_its_old_size_is_read_anew(tmp_path):
    run = make_run(tmp_path)
    page = client(tmp_path)
    curves(page, run)
    rows = [{"step": 10 * i, "train/return": -float(i)} for i in range(60)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert curves(page, run).json()["lines"][0]["y"] == [-float(i) for i in range(60)]


def test_the_axis_may_be_wall_time_or_updates(tmp_path):
    run = make_run(tmp_path)
    page = client(tmp_path)
    assert curves(page, run, x="wall").json()["lines"][0]["x"][-1] == 190 / 5
    assert curves(page, run, x="updates").json()["lines"][0]["x"][-1] == 19
    assert curves(page, run, x="time").status_code == 409


def test_seeds_make_one_line_with_a_band(tmp_path):
    runs = [
        make_run(tmp_path, f"sac/reach/{seed}", [{"step": s, "train/return": s + seed} for s in range(5)])
        for seed in (0, 2)
    ]
    (band,) = curves(client(tmp_path), *runs, by="group").json()["lines"]
    assert band["y"] == [1, 2, 3, 4, 5]
    assert band["low"] == [0, 1, 2, 3, 4]
    assert band["high"] == [2, 3, 4, 5, 6]


def test_seeds_that_were_evaluated_at_different_steps_are_no_blank_chart(tmp_path):
    runs = [make_run(tmp_path, f"sac/reach/{seed}", [{"step": 50 + seed, "train/return": seed}]) for seed in range(2)]
    (band,) = curves(client(tmp_path), *runs, by="group").json()["lines"]
    assert (band["x"], band["y"], band["seeds"]) == ([50, 51], [0, 1], 2)


def test_a_long_log_is_a_sketch_first_and_whole_when_it_was_read(tmp_path):
    rows = [{"step": i, "train/return": 1000.0 if i == 77_777 else float(i % 7)} for i in range(100_000)]
    run = make_run(tmp_path, rows=rows)
    logs = Logs()
    page = client(tmp_path, logs=logs)
    sketch = curves(page, run).json()
    assert not sketch["lines"][0]["whole"]
    assert sketch["lines"][0]["x"][0] == 0
    assert sketch["lines"][0]["x"][-1] == 99_999
    while logs.work():
        pass
    whole = curves(page, run, known=sketch["version"]).json()["lines"][0]
    assert whole["whole"]
    assert max(whole["y"]) == 1000.0  # the one point that stands out is never thinned away
    assert len(whole["y"]) <= 4 * 800


def test_long_logs_are_not_read_whole_while_an_answer_is_made(tmp_path):
    run = make_run(tmp_path)
    logs, stop = Logs(sketch_bytes=100), threading.Event()
    logs.column(run / "metrics.jsonl", "train/return")
    with logs.asked():
        reader = read_in_background(logs, stop)
        time.sleep(0.1)
        assert logs.is_reading()
    wait_until(lambda: not logs.is_reading())
    stop.set()
    reader.join(5)
    assert not reader.is_alive()


def test_numbers_are_told_in_six_digits(tmp_path):
    rng = np.random.default_rng(0)
    values = [0.0, 1.0, -1.0, 999999.5, 123456789.0, *(rng.normal(size=500) * 10.0 ** rng.integers(-12, 20, 500))]
    run = make_run(tmp_path, rows=[{"step": i, "train/return": value} for i, value in enumerate(values)])
    (line,) = curves(client(tmp_path), run).json()["lines"]
    assert line["y"] == [float(f"{value:.6g}") for value in values]


def test_the_address_is_told_before_anything_that_takes_long_is_loaded(tmp_path):
    code = (
        "import builtins, sys\n"
        "from roboloop.dash.command import dash\n"
        "builtins.print = lambda *said, **how: sys.exit(' '.join({'numpy', 'uvicorn', 'starlette'} & {*sys.modules}))\n"
        f"dash([{str(tmp_path)!r}])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stderr.strip() == ""


def test_thinning_keeps_the_lowest_and_highest_of_every_column():
    rng = np.random.default_rng(0)
    x, y = np.arange(10_000.0), rng.normal(size=10_000)
    thin_x, thin_y = thin(x, y, 50, 0.0, 10_000.0)
    assert len(thin_x) <= 200
    for column in range(50):
        inside, kept = (a // 200 == column for a in (x, thin_x))
        assert y[inside].max() == thin_y[kept].max()
        assert y[inside].min() == thin_y[kept].min()


def test_smoothing_equals_its_definition():
    value = np.random.default_rng(0).normal(size=5000)
    total = mass = 0.0
    slow = []
    for v in value:
        total, mass = 0.9 * total + v, 0.9 * mass + 1
        slow.append(total / mass)
    np.testing.assert_allclose(smooth(value, 0.9), slow, rtol=1e-9, atol=1e-12)


def test_a_damaged_log_gives_what_can_be_read(tmp_path):
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_bytes(
        b'{"step": 1, "train/return": 2}\n\xff\xfe not json\n[1]\n{"step": 3, "train/return": 4}\n'
    )
    assert curves(client(tmp_path), run).json()["lines"][0]["y"] == [2, 4]
    (run / "timing.jsonl").write_bytes(b'{"step": 1}\nnot json\n{"step": 3, "wall_s": 9.0}\n')
    assert client(tmp_path).get(f"/api/run/{run_id(run)}").json()["seconds"] == {"wall": 9.0}


def test_what_few_lines_of_a_long_log_have_stays_in_the_list_once_it_was_read(tmp_path):
    def row(i):
        return {"step": i, "train/return": float(i)} | ({"eval/success": 1.0} if i == 3001 else {})

    run = make_run(tmp_path, rows=[row(i) for i in range(6000)])
    logs = Logs(sketch_bytes=1000)
    page = client(tmp_path, logs=logs)
    asked = f"/api/keys?runs={run_id(run)}"
    assert "train/return" in page.get(asked).json()["keys"]
    curves(page, run)
    while logs.work():
        pass
    for i in range(6000, 6050):
        with open(run / "metrics.jsonl", "a") as log:
            log.write(json.dumps(row(i)) + "\n")
        assert "eval/success" in page.get(asked).json()["keys"]
    (run / "metrics.jsonl").write_text('{"step": 1, "train/return": 1}\n')  # begun anew
    assert "eval/success" not in page.get(asked).json()["keys"]


def test_lines_that_were_made_are_kept_up_to_a_number_of_points(tmp_path, monkeypatch):
    monkeypatch.setattr("roboloop.dash.curves._MOST_NUMBERS", 100)
    run = make_run(tmp_path)
    made = client(tmp_path)
    for smoothing in np.linspace(0, 0.9, 30):
        assert len(curves(made, run, smoothing=smoothing).json()["lines"][0]["x"]) == 20
    kept = made.app.state.page.curves
    assert len(kept._made) == 2  # of 40 numbers each
    assert kept._num_kept == 80


def test_settings_in_which_runs_differ_are_told(tmp_path):
    runs = [make_run(tmp_path, f"sac/reach/{seed}") for seed in (0, 1)]
    (runs[1] / "config.yaml").write_text("experiment: sac\nseed: 0\nsteps: 1000\nalgo: {lr: 0.2}\n")
    answer = client(tmp_path).get("/api/diff", params={"runs": ",".join(map(run_id, runs))}).json()
    assert answer["rows"] == {"algo.lr": [0.1, 0.2]}


def test_a_run_is_told_again_only_when_something_of_it_changed(tmp_path):
    run = make_run(tmp_path)
    page = client(tmp_path)
    known = ""

    def told():
        nonlocal known
        answer = page.get(f"/api/run/{run_id(run)}", params={"known": known})
        known = answer.json()["version"] if answer.status_code == 200 else known
        return answer.status_code

    for name in ("timing.jsonl", "eval/step-1.jsonl", "plots/a.png", "dataset/index.log", "config.yaml"):
        assert (told(), told()) == (200, 204)
        (run / name).parent.mkdir(exist_ok=True)
        with open(run / name, "a") as file:
            file.write("\n")
    assert told() == 200


def test_a_log_is_followed_from_where_it_was_left(tmp_path):
    run = make_run(tmp_path)
    (run / "launch").mkdir()
    log = run / "launch" / "output.log"
    log.write_text("one\n")
    page = client(tmp_path)
    first = page.get(f"/api/log/{run_id(run)}").json()
    log.write_text("one\ntwo\n")
    second = page.get(f"/api/log/{run_id(run)}", params={"from": first["to"]}).json()
    assert (first["text"], second["text"]) == ("one\n", "two\n")
    assert page.get(f"/api/log/{run_id(run)}", params={"from": "9" * 5_000}).json()["text"] == "one\ntwo\n"


def test_a_film_comes_in_the_parts_that_a_browser_asks_for(tmp_path):
    run = make_run(tmp_path)
    (run / "videos").mkdir()
    (run / "videos" / "evaluation.mp4").write_bytes(bytes(range(100)))
    page = client(tmp_path)
    assert page.get(f"/api/run/{run_id(run)}").json()["media"][0]["name"] == "videos/evaluation.mp4"
    part = page.get(f"/media/{run_id(run)}/videos/evaluation.mp4", headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
    assert part.headers["content-type"] == "video/mp4"


def test_deadlines_of_a_robot_are_counted(tmp_path):
    run = make_run(tmp_path)
    rows = [{"step": i, "wall_s": i, "sample/lateness_ticks": delay_counts([0.0, 0.5, 12.0])} for i in range(30)]
    rows.append({"step": 30, "sample/lateness_ticks": "torn"})
    (run / "timing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = client(tmp_path).get(f"/api/run/{run_id(run)}").json()["latency"]
    edges, counts = told["edges_ms"], told["histograms"]["lateness"]
    assert [(low, high, n) for low, high, n in zip(edges, edges[1:], counts, strict=False) if n] == [
        (0.0, 0.01, 30), (0.3981, 0.631, 30), (10.0, 15.8489, 30)
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["a", "step", 'quoted "a"', "never"])
@pytest.mark.parametrize(
    "bad", ["", '"b": "x"', '"a": "x"', '"a": NaN', '"a": 1e999', '"a": true', '"a": null', '"a": [1]']
)
def test_a_column_has_the_numbers_of_its_key_whatever_else_is_in_the_log(key, bad):
    good = [{"step": 1, "a": 5, 'quoted "a"': 0.5}, {"step": 2.5, "a": -1e-3}, {"b": 3}]
    lines = [json.dumps(row) for row in good]
    lines.insert(1, f'{{"step": 9{", " if bad else ""}{bad}}}')
    step, value = values("".join(line + "\n" for line in lines).encode(), key)
    nine = [(9.0, 9.0)] if key == "step" else []
    expected = [(row["step"], row[key]) for row in good if key in row and "step" in row]
    assert list(zip(step.tolist(), value.tolist(), strict=True)) == [*expected[:1], *nine, *expected[1:]]


def test_lines_that_are_no_rows_are_left_out_of_a_column():
    step, value = values(b'rubbish\n{"step": 1, "a": 2}\n[3]\n\n7\n', "a")
    assert (step.tolist(), value.tolist()) == ([1.0], [2.0])


def test_progress_of_a_run_is_of_evaluations_and_of_training_also_when_evaluated_afterwards(tmp_path):
    rows = [{"step": i, "train/return": float(i), **({"eval/return": 5.0} if i == 3 else {})} for i in range(6)]
    run, later = make_run(tmp_path, rows=rows), make_run(tmp_path, "dt/reach/0", rows=rows[:2])
    (later / "eval.jsonl").write_text('{"step": 1, "eval/success": 0.5}\n')
    page = client(tmp_path)
    assert page.get(f"/api/run/{run_id(run)}").json()["progress"] == {
        "return": {"eval": {"step": [3], "value": [5]}, "train": {"step": [*range(6)], "value": [*range(6)]}}
    }
    told = page.get(f"/api/run/{run_id(later)}").json()["progress"]
    assert told["success"] == {"eval": {"step": [1], "value": [0.5]}}


def test_progress_of_a_long_log_is_a_sketch_until_it_was_read(tmp_path):
    rows = [{"step": i, "train/return": float(i), **({"eval/return": 5.0} if i == 77 else {})} for i in range(4000)]
    run, logs = make_run(tmp_path, rows=rows), Logs(sketch_bytes=1000)
    page = client(tmp_path, logs=logs)
    first = page.get(f"/api/run/{run_id(run)}").json()
    while logs.work():
        pass
    again = page.get(f"/api/run/{run_id(run)}", params={"known": first["version"]})
    assert again.status_code == 200  # though the log is the same
    assert again.json()["progress"]["return"]["eval"] == {"step": [77], "value": [5]}


def test_which_task_acted_is_a_timeline(tmp_path):
    rows = [{"step": i, "choice/reach": 0.25, "choice/lift": 0.75} for i in range(5)]
    run = make_run(tmp_path, rows=rows)
    told = client(tmp_path).get(f"/api/run/{run_id(run)}").json()["timeline"]
    assert told["shares"]["lift"] == [0.75] * 5


def test_the_stop_button_does_what_the_command_does(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr("roboloop.launch.job.os.kill", lambda pid, number: sent.append(number))
    run = make_run(tmp_path, state="running")
    with take_lock(run, "running in"):
        answer = client(tmp_path).post(f"/api/stop/{run_id(run)}", headers={"origin": ORIGIN})
    assert answer.json()["said"] == "saves and ends"
    assert sent[-1] == signal.SIGTERM


def test_a_run_that_runs_or_is_done_is_not_resumed(tmp_path):
    page = client(tmp_path)
    done, running = make_run(tmp_path), make_run(tmp_path, "sac/reach/1", state="running")
    for run, why in ((done, "done"), (running, "runs already")):
        answer = page.post(f"/api/resume/{run_id(run)}", headers={"origin": ORIGIN})
        assert answer.status_code == 409
        assert why in answer.json()["error"]


def test_a_run_of_a_sweep_is_held_by_its_button_and_goes_on_in_its_turn(tmp_path):
    sweep = Sweep(tmp_path, "0 1", {0: "waits once", 1: "waits"}, axis="0.9")
    launcher, run = sweep.begin("--slots", "2"), sweep.path(0.9, 0)

    def pressed(button):
        return client(tmp_path / "runs").post(f"/api/{button}/{run_id(run)}", headers={"origin": ORIGIN}).json()

    try:
        wait_until(lambda: sweep.state(0.9, 0) == sweep.state(0.9, 1) == "running")
        assert pressed("stop") == {"said": "saves and ends; held"}
        wait_until(lambda: sweep.state(0.9, 0) == "stopped" and not Job(run).is_live())
        assert pressed("resume") == {"said": "starts in its turn"}
        wait_until(lambda: sweep.state(0.9, 0) == "done")
        assert sweep.started().count("gamma=0.9/0") == 2
    finally:
        launcher.terminate()
        launcher.communicate(timeout=60)


def test_recorded_pictures_are_one_sheet_and_numbers_are_none(tmp_path):
    for name, kind in (("seen", "pictures"), ("felt", "numbers")):
        run = make_run(tmp_path, f"{name}/reach/0")
        with StoreWriter(run / "dataset", schema_of(kind)) as writer:
            for number in range(8):
                writer.append(*episode_of(number, length=9, kind=kind))
    page, seen, felt = client(tmp_path), tmp_path / "seen/reach/0", tmp_path / "felt/reach/0"
    assert [each["name"] for each in page.get(f"/api/run/{run_id(seen)}").json()["datasets"]] == ["dataset"]
    sheet = page.get(f"/sheet/{run_id(seen)}/dataset")
    assert sheet.headers["content-type"] == "image/png"
    height, width = KINDS["pictures"][0][1:]
    shown = np.asarray(Image.open(io.BytesIO(sheet.content)))
    assert shown.shape == (
        6 * (height + 2) - 2,
        8 * (width + 2) - 2,
        3,
    )  # the newest six episodes, eight moments of each
    last, _ = episode_of(7, length=9, kind="pictures")
    np.testing.assert_array_equal(shown[-height:, -width:], last.obs[-1].transpose(1, 2, 0))
    assert "no pictures" in page.get(f"/sheet/{run_id(felt)}/dataset").json()["error"]


def test_an_unknown_run_is_404(tmp_path):
    assert client(tmp_path).get("/api/run/0123456789").status_code == 404


def test_a_first_look_at_long_logs_is_short(tmp_path):
    rows = [{"step": i, "train/return": float(i)} for i in range(30_000)]
    runs = [make_run(tmp_path, f"sac/reach/{seed}", rows) for seed in range(5)]
    page = client(tmp_path, logs=Logs(sketch_bytes=1000))
    before_s = time.process_time()
    curves(page, *runs)
    assert time.process_time() - before_s < 2.0
