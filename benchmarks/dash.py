"""Time to the first picture of many long runs: `roboloop dash` beside TensorBoard, same logs, same Chromium.

Both are started as a user starts them, on run directories with one scalar of so many points, as metrics.jsonl and as
the event files that mirror it. The clock runs from the start of the command until the curves of all runs are on the
screen. Ours are drawn from a sketch of each log first; when they are whole is a second number. TensorBoard's page is
opened when its server has read every run to its end, which is most of its time; in its favour, its picture counts as
soon as there is any colour in its chart. A third turn opens its page as soon as the server answers, and again every
five seconds until there is any curve: how many runs the server knows to their end by then is told too. Rounds
alternate; medians are told. All files are read once before, so that both find them in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TAG = "train/return"
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
_LIMIT_S = 900.0
_DIFFERENT = 4
_RELOAD_S = 5.0


def make_runs(root: Path, runs: int, points: int) -> None:
    """Write a few different runs, and copies of them under other seeds."""
    from roboloop.core.rng import stream
    from roboloop.track.trackers.tensorboard import TensorBoard
    from roboloop.track.trackers.tracker import TrackedRun

    made = []
    for run in range(runs):
        path = root / f"variant-{run // 10}" / "reach" / str(run % 10)
        if run >= _DIFFERENT:
            shutil.copytree(made[run % _DIFFERENT], path)
            continue
        values = stream(run, "bench-dash").normal(size=points).cumsum()
        rows = [{"step": i, TAG: round(float(value), 5)} for i, value in enumerate(values)]
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        tracker = TensorBoard()
        tracker.open(TrackedRun(path, "bench", "dash", run, {}))
        for row in rows:
            tracker.write(int(row["step"]), {TAG: row[TAG]})
        tracker.close()
        (path / "config.yaml").write_text(f"seed: {run}\nsteps: {points}\n")
        status = {"state": "done", "step": points, "steps": points, "updated_unix_s": time.time()}
        (path / "status.json").write_text(json.dumps(status))
        made.append(path)


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ))
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def ours(browser: Any, root: Path, runs: int) -> dict[str, float]:
    begin_s = time.monotonic()
    with started([sys.executable, "-m", "roboloop.cli", "dash", str(root)]) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(_LIMIT_S * 1e3)
        page.goto(url)
        page.uncheck("#group")  # one line for each run, as TensorBoard draws them
        page.wait_for_selector(f'.chart[data-lines="{runs}"]')
        first_s = time.monotonic() - begin_s
        page.wait_for_selector("#reading", state="hidden")
        whole_s = time.monotonic() - begin_s
        page.context.close()
    return {"first_s": first_s, "whole_s": whole_s}


@contextlib.contextmanager
def tensorboard_server(root: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(root), "--port", str(port)]
    with started([*command, "--host", "127.0.0.1"]):
        yield f"http://127.0.0.1:{port}"


def tensorboard(browser: Any, root: Path, runs: int, points: int) -> dict[str, float]:
    begin_s = time.monotonic()
    with tensorboard_server(root) as address:
        while _runs_read(address, points) < runs:
            if time.monotonic() - begin_s > _LIMIT_S:
                raise TimeoutError("TensorBoard has not read all runs")
            time.sleep(0.5)
        read_s = time.monotonic() - begin_s
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(_LIMIT_S * 1e3)
        page.goto(f"{address}/#timeseries")
        _draw_all(page)
        while not _is_coloured(page.locator("scalar-card line-chart").first.screenshot()):
            if time.monotonic() - begin_s > _LIMIT_S:
                raise TimeoutError("TensorBoard has drawn nothing")
        first_s = time.monotonic() - begin_s
        page.context.close()
    return {"first_s": first_s, "whole_s": first_s, "read_s": read_s}


def tensorboard_early(browser: Any, root: Path, points: int) -> dict[str, float]:
    from playwright.sync_api import Error

    begin_s = time.monotonic()
    with tensorboard_server(root) as address:
        while time.monotonic() - begin_s < _LIMIT_S:
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            page.set_default_timeout(_RELOAD_S * 1e3)
            with contextlib.suppress(Error):  # not listening yet, or a page that has nothing to show
                page.goto(f"{address}/#timeseries")
                _draw_all(page)
                loaded_s = time.monotonic()
                while time.monotonic() - loaded_s < _RELOAD_S:
                    if _is_coloured(page.locator("scalar-card line-chart").first.screenshot()):
                        return {"first_s": time.monotonic() - begin_s, "runs": _runs_read(address, points)}
            page.context.close()
    raise TimeoutError("TensorBoard has drawn nothing")


def _draw_all(page: Any) -> None:
    page.wait_for_selector("tb-data-table-content-row mat-checkbox")
    if not page.locator("tb-data-table-content-row input:checked").count():  # of very many runs none is drawn
        page.locator("runs-data-table mat-checkbox input").first.click()


def _is_coloured(picture: bytes) -> bool:
    """Say whether a part of a picture is neither black, white nor grey."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")).astype(int)
    return bool((np.ptp(pixels, axis=2) > 60).mean() > 0.003)


def _runs_read(address: str, points: int) -> int:
    """Return how many runs TensorBoard's server knows to their end."""
    data = urllib.parse.urlencode({"requests": json.dumps([{"plugin": "scalars", "tag": TAG}])}).encode()
    url = f"{address}/experiment/defaultExperimentId/data/plugin/timeseries/timeSeries"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            (found,) = json.load(answer)
    except (urllib.error.URLError, ConnectionError, ValueError):
        return 0
    series = found.get("runToSeries", {})
    return sum(bool(rows) and rows[-1]["step"] == points - 1 for rows in series.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="where the runs are, or are made; a temporary folder if not given")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with contextlib.ExitStack() as stack:
        root = args.logs or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "runs"
        if not root.exists():
            make_runs(root, args.runs, args.points)
        for path in root.rglob("*"):
            if path.is_file():
                path.read_bytes()
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=args.chromium, args=FLAGS)
        turns = {"roboloop dash": lambda: ours(browser, root, args.runs),
                 "TensorBoard": lambda: tensorboard(browser, root, args.runs, args.points),
                 "TensorBoard, early": lambda: tensorboard_early(browser, root, args.points)}  # fmt: skip
        results: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
        for number in range(args.rounds):
            order = list(turns.items())
            for name, turn in order if number % 2 == 0 else order[::-1]:
                results[name].append(turn())
                print(f"round {number}: {name} {results[name][-1]}", flush=True)
        browser.close()
    report(results, args)


def report(results: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> None:
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in results.items()
    }
    own_s = medians["roboloop dash"]["first_s"]
    print(f"{args.runs} runs x {args.points} points, median of {args.rounds} rounds, seconds from the command's start")
    print("| page | first picture | whole | ours is sooner |\n|---|---|---|---|")
    for name, row in medians.items():
        whole = f"{row['whole_s']:.2f}" if "whole_s" in row else f"{row['runs']:.0f} runs read by then"
        print(f"| {name} | {row['first_s']:.2f} | {whole} | {row['first_s'] / own_s:.1f}x |")
    if args.out:
        facts = {"runs": args.runs, "points": args.points, "load": os.getloadavg()[0], "results": results}
        args.out.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
