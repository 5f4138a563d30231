"""What stands in the files of trackers, read as their own viewers read it."""

from __future__ import annotations

import importlib
import struct
import time
from pathlib import Path

from roboloop.core.config import to_dict
from roboloop.run.config import Experiment
from roboloop.track.trackers.tracker import TrackedRun


def tracked(path: Path) -> TrackedRun:
    """Return a run of default config in a directory."""
    return TrackedRun(path, "sac", "reach-v3", 0, to_dict(Experiment()))


def points(events: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def wandb_rows(run: Path) -> list[tuple[int, dict[str, str]]]:
    """Return steps and values in the offline runs of W&B."""
    internal = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in (run / "wandb").glob("offline-run-*/*.wandb"):
        # 7 bytes of magic, then records of checksum, length, type and a proto
        data, at = path.read_bytes(), 7
        while at < len(data):
            start = at + 7
            at = start + struct.unpack_from("<IHB", data, at)[1]
            record = internal.Record.FromString(data[start:at])
            if record.HasField("history"):
                values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append((record.history.step.num, values))
    return rows


def wait_for_wandb_steps(run: Path, expected: list[int]) -> None:
    """W&B's own process closes the file a moment after ``finish`` has returned."""
    deadline = time.monotonic() + 10
    while [step for step, _ in wandb_rows(run)] != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [step for step, _ in wandb_rows(run)] == expected


def trackio_rows(project: str, name: str) -> dict[str, list[int]]:
    """Return the steps of the runs of this name that Trackio shows, by id."""
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = [run for run in trackio.Api().runs(project) if run.name == name]
    return {run.id: [row["step"] for row in SQLiteStorage.get_logs(project, name, run_id=run.id)] for run in runs}
