"""One record per suite: what its environments are called, how they are made, and what else it has.

The record stands in the suite's own folder and imports no simulator; ``envs/registry.py`` finds it by name, by entry
point or by ``module:attr``. Functions may be given as ``module:attr`` too, so that the simulator is imported when an
environment is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roboloop.core.errors import ConfigError, nearest
from roboloop.envs.config import EnvConfig

Function = Callable[..., Any] | str


def _no_modules(task: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Suite:
    """A family of environments; only ``name`` and ``make`` are needed."""

    name: str
    """The first part of its ids: ``name/task``."""
    make: Function
    """``make(task, config, evaluation) -> Env``."""
    ids: tuple[str, ...] = ()
    """Its tasks."""
    config: Callable[[], EnvConfig] = EnvConfig
    """Its section of the config: a frozen dataclass derived from EnvConfig; further fields become flags."""
    has_more: bool = False
    """Whether ``make`` knows more tasks than ``ids``."""
    packages: tuple[str, ...] = ()
    """Top-level modules whose absence means that the suite's extra is not installed."""
    full_name: Callable[[str], str] | None = None
    """The name of a task that may be given in short, or wrong: raises ConfigError. None means one of ``ids``."""
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Sets of tasks by name."""
    same_spaces: bool = False
    """Whether all tasks have equal observations and actions, so that any of them make a set."""
    make_vector: Function | None = None
    """``make_vector(task, config, num_envs) -> VectorWorld``: one simulator that steps all environments of a group."""
    tasks: Function | None = None
    """``tasks(task, config) -> AuxiliaryTasks``; imports no simulator."""
    expert: Function | None = None
    """``expert(task)``: a policy that was written and not learned, or a function from observations to actions.
    With auxiliary tasks, ``expert(task, name)`` is that of one of them."""
    has_named_experts: bool = False
    """Whether ``expert(task, name)`` is one of several experts by its name, and not that of an auxiliary task."""
    serve: Function | None = None
    """``serve(task, config, port, stop)``: a simulated robot that stands by itself, for ``roboloop rig``."""
    check_reachable: Function | None = None
    """``check_reachable(task, config)`` raises where a robot does not answer at its address."""
    modules: Callable[[str], Sequence[str]] = _no_modules
    """Modules of other people that making a task imports."""
    examine: Function | None = None
    """``examine(task, config, findings, steps, short)``: what ``envs check`` looks at beside our own contract."""
    is_gymnasiums: bool = False
    """Whether its tasks are Gymnasium's own ids; those of all other suites of ours are registered with Gymnasium."""
    is_environment: Function | None = None
    """``is_environment(task)``: whether an id or a name of code stands for a class of environments, no function."""
    example: str = ""
    """The task that ``roboloop doctor`` steps."""

    def task(self, name: str) -> str:
        """Return the full name of a task; one that is none of this suite's is refused."""
        if self.full_name is not None:
            return self.full_name(name)
        if name and self.ids and not self.has_more and name not in self.ids:
            raise ConfigError(f"unknown {self.name} task {name!r}{nearest(name, self.ids)}")
        return name
