"""Train for real, crash for real, and compare everything that is left."""

from __future__ import annotations

import io
from pathlib import Path

from roboloop.run import checkpoint
from roboloop.run.build import build
from roboloop.run.rundir import RunDir
from roboloop.run.runner import Runner
from roboloop.track.terminal import Progress


class Crash(Exception):
    """Ends a run as a power cut would: nothing is saved on the way out."""


def make_runner(run: RunDir) -> Runner:
    return Runner(run, build(run.config), {}, Progress(run.config.steps, stream=io.StringIO()))


def train(config, crash_after: int | None = None) -> Path:
    """Train a new run; ``crash_after`` iterations an exception goes through the loop."""
    return _train(RunDir.create(config, []), crash_after)


def resume(path: Path, crash_after: int | None = None, said: list[str] | None = None) -> Path:
    run = RunDir.open(path, write=True)
    return _train(run, crash_after, [] if said is None else said)


def _train(run: RunDir, crash_after: int | None, said: list[str] | None = None) -> Path:
    runner = make_runner(run)
    if crash_after is not None:
        collect, left = runner.sampler.collect, [crash_after]

        def crashing(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return collect(*args, **kwargs)

        runner.sampler.collect = crashing
    try:
        if said is not None:
            runner.resume(said.append)
        runner.train()
    except Crash:
        pass
    finally:
        runner.close()
        run.close()
    return run.path


def remains(path: Path) -> dict:
    """Everything a finished run leaves that must not depend on interruptions (a journal's record boundaries may)."""
    point = next(checkpoint.newest_first(path / "checkpoints", print))
    return {
        "state": point.state,
        "metrics": (path / "metrics.jsonl").read_bytes().decode(),
        "rows": _rows(path, point),
    }


def _rows(path: Path, point: checkpoint.Checkpoint) -> dict:
    config = RunDir.open(path, check_names=False).config
    parts = build(config)
    from roboloop.data import journal

    parts.store.load(point.state["store"], journal.read(path / "journal", point.journal))
    parts.algo.close()
    parts.sampler.close()
    columns = ("_obs", "_action", "_reward", "_flags", "_age", "_head")
    return {k: getattr(parts.store, k) for k in columns if parts.store.journaled}
