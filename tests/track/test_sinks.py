from __future__ import annotations

import importlib
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pytest

from roboloop.core.errors import DataError, MissingExtra
from roboloop.track.sinks import TensorBoardSink, WandbSink


def points(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def wandb_steps(run: Path) -> list[int]:
    """Return the steps in the offline runs: 7 bytes of magic, then records of checksum, length, type and a proto."""
    internal = importlib.import_module("wandb.proto.wandb_internal_pb2")
    steps = []
    for path in (run / "wandb").glob("offline-run-*/*.wandb"):
        data, at = path.read_bytes(), 7
        while at < len(data):
            start = at + 7
            at = start + struct.unpack_from("<IHB", data, at)[1]
            record = internal.Record.FromString(data[start:at])
            steps += [record.history.step.num] if record.HasField("history") else []
    return steps


def wait_for_wandb_steps(run: Path, expected: list[int]) -> None:
    """W&B's own process closes the file a moment after ``finish`` has returned."""
    deadline = time.monotonic() + 10
    while wandb_steps(run) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert wandb_steps(run) == expected


def test_tensorboard_reads_what_was_written_and_never_sees_null(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.write(10, {"step": 10, "eval/return": 1.5, "eval/success": None, "note": "text"})
    sink.write(20, {"step": 20, "eval/return": 2.5, "eval/success": 1.0, "bad": float("nan")})
    sink.close()
    assert points(tmp_path) == {"eval/return": [(10, 1.5), (20, 2.5)], "eval/success": [(20, 1.0)]}


def test_a_sink_without_rows_leaves_no_file(tmp_path: Path) -> None:
    TensorBoardSink(tmp_path).close()
    assert not list(tmp_path.iterdir())


def test_rebuilding_leaves_no_step_twice_and_no_file_of_others_is_touched(tmp_path: Path) -> None:
    foreign = tmp_path / "events.out.tfevents.1.someone"
    foreign.touch()
    crashed = TensorBoardSink(tmp_path)
    for step in range(0, 60, 10):
        crashed.write(step, {"x": float(step)})
    crashed.close()
    resumed = TensorBoardSink(tmp_path)
    resumed.rebuild([{"step": step, "x": float(step)} for step in range(0, 40, 10)])  # the checkpoint was at 30
    resumed.write(40, {"x": -40.0})
    resumed.close()
    assert points(tmp_path) == {"x": [(0, 0.0), (10, 10.0), (20, 20.0), (30, 30.0), (40, -40.0)]}
    assert foreign.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_rebuilt_events_keep_the_time_they_were_logged_at(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path)
    sink.rebuild([{"step": 1, "x": 0.0}, {"step": 2, "x": 0.0}], unix_s={1: 1000.0, 2: 1060.0})
    sink.close()
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [e.wall_time for e in accumulator.Scalars("x")] == [1000.0, 1060.0]


def test_wandb_offline_writes_a_run_without_touching_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    run = tmp_path / "sac" / "reach-v3" / "0"
    run.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as proxy:  # whatever wants out must come by here
        proxy.settimeout(0.2)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        sink = WandbSink(run, {"seed": 0})
        for step in (10, 20, 30):
            sink.write(step, {"step": step, "eval/return": float(step), "eval/success": None})
        sink.close()
        wait_for_wandb_steps(run, [10, 20, 30])
        time.sleep(1.1)  # W&B names its folders by the second
        resumed = WandbSink(run, {"seed": 0})
        resumed.rebuild([{"step": 10, "eval/return": 10.0}, {"step": 20, "eval/return": 20.0}])
        resumed.write(30, {"step": 30, "eval/return": -1.0})
        resumed.close()
        with pytest.raises(TimeoutError):
            proxy.accept()
    wait_for_wandb_steps(run, [10, 20, 30])
    (folder,) = (run / "wandb").glob("offline-run-*")
    assert folder.name.endswith((run / "wandb" / "id.txt").read_text())


def test_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"pip install roboloop\[wandb\]"):
        WandbSink(tmp_path, {})


@pytest.mark.parametrize("act", ["write", "rebuild"])
def test_events_are_never_written_or_deleted_through_a_link(tmp_path: Path, act: str) -> None:
    victim, linked = tmp_path / "victim", tmp_path / "run" / "events"
    victim.mkdir()
    (victim / "events.out.tfevents.1.roboloop").write_text("precious")
    linked.parent.mkdir()
    linked.symlink_to(victim)
    sink = TensorBoardSink(linked)
    with pytest.raises(DataError, match="symbolic link"):
        sink.write(1, {"x": 1.0}) if act == "write" else sink.rebuild([{"step": 1, "x": 1.0}])
    assert [path.read_text() for path in victim.iterdir()] == ["precious"]


@pytest.mark.parametrize("odd", ["folder", "id", "long id", "id that is a path", "settings", "FIFO"])
def test_odd_files_of_wandb_in_a_run_are_refused(tmp_path: Path, odd: str) -> None:
    pytest.importorskip("wandb")
    victim, run = tmp_path / "victim", tmp_path / "sac" / "reach-v3" / "0"
    victim.mkdir()
    (victim / "id.txt").write_text("abc")
    run.mkdir(parents=True)
    folder = run / "wandb"
    if odd == "folder":
        folder.symlink_to(victim)
    else:
        folder.mkdir()
    if odd == "id":
        (folder / "id.txt").symlink_to(victim / "id.txt")
    elif odd == "long id":
        (folder / "id.txt").write_text("a" * 10_000)
    elif odd == "id that is a path":
        (folder / "id.txt").write_text("../../*")
    elif odd == "settings":  # W&B reads it where it stands in the working directory: it may name another server
        (folder / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    elif odd == "FIFO":
        os.mkfifo(folder / "id.txt")
    with pytest.raises(DataError):
        WandbSink(run, {})
    assert [path.name for path in victim.iterdir()] == ["id.txt"]
