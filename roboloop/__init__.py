"""One training system for robot learning: from the first reset to a policy that can be trusted on the robot.

``import roboloop as rl`` gives what ``docs/python.md`` lists; each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roboloop.core.on_import import when_imported
from roboloop.core.version import __version__

if TYPE_CHECKING:
    from roboloop.api.dataset import TorchDataset as Dataset
    from roboloop.api.envs import make
    from roboloop.api.policy import LoadedPolicy as Policy
    from roboloop.api.record import record
    from roboloop.api.run import Interrupted, Run, evaluate, experiment, load, runs, train
    from roboloop.core.errors import (
        ConfigError,
        DataError,
        DiskError,
        Diverged,
        MissingExtra,
        RunExists,
        UserError,
        WorkerLost,
    )
    from roboloop.run.config import Experiment
    from roboloop.run.evaluate import Summary

_PLACES = {
    "Dataset": "roboloop.api.dataset:TorchDataset",
    "make": "roboloop.api.envs:make",
    "Policy": "roboloop.api.policy:LoadedPolicy",
    "record": "roboloop.api.record:",
    **dict.fromkeys(
        ("Interrupted", "Run", "evaluate", "experiment", "load", "runs", "train"), "roboloop.api.run:"
    ),
    **dict.fromkeys(
        (
            "ConfigError", "DataError", "DiskError", "Diverged", "MissingExtra", "RunExists", "UserError", "WorkerLost"
        ),
        "roboloop.core.errors:",
    ),
    "Experiment": "roboloop.run.config:",
    "Summary": "roboloop.run.evaluate:",
}  # fmt: skip
"""Public name -> ``module:attr``, where it is; without attr it has the same name there."""

__all__ = [
    "ConfigError", "DataError", "Dataset", "DiskError", "Diverged", "Experiment", "Interrupted", "MissingExtra",
    "Policy", "Run", "RunExists", "Summary", "UserError", "WorkerLost", "__version__", "evaluate", "experiment",
    "load", "make", "record", "runs", "train",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker must see names that are not there

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module 'roboloop' has no attribute {name!r}")
        module, _, attr = _PLACES[name].partition(":")
        found = globals()[name] = getattr(import_module(module), attr or name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# importing Gymnasium takes longer than all of `roboloop --help`
when_imported("gymnasium.envs", "roboloop.envs.gymnasium_ids:register")
