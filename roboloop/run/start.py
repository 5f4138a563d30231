"""Weights of another run to begin with: the next tier of a curriculum, or going on in another environment."""

from __future__ import annotations

from pathlib import Path

from roboloop.core.errors import ConfigError
from roboloop.core.fields import first_difference
from roboloop.core.types import Algorithm
from roboloop.run import build, checkpoint
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir, find_run


def load_weights_from(algo: Algorithm, cfg: Experiment) -> None:
    """Give an algorithm the last weights, optimizers and normalisation of the run that its config names, if any."""
    if not cfg.start:
        return
    run = RunDir.open(find_run(Path(cfg.start)))
    if misfit := _misfit(run.config, cfg):
        raise ConfigError(f"weights of {cfg.start} do not fit: {misfit}")
    point = run.pick("last")
    with checkpoint.fits(point.path):
        algo.load(point.state["algo"] | {"num_updates": 0})


def _misfit(old: Experiment, new: Experiment) -> str:
    """Return the first thing that keeps weights of one run from another; empty where there is none."""
    if old.algo.name != new.algo.name:
        return f"it trained {old.algo.name}, this is {new.algo.name}"
    if old.env.frame_stack != new.env.frame_stack:
        return f"it saw {old.env.frame_stack} observations at once, this run {new.env.frame_stack}"
    known, spec = build.spec_of(old), build.spec_of(new)
    name = first_difference(known, spec)
    return f"{old.env.id} has {name} {getattr(known, name)}, {new.env.id} {getattr(spec, name)}" if name else ""
