"""One record per algorithm: what a run must know of it before it is made.

The record of an algorithm stands in its own file; ``algos/registry.py`` finds it by name, by entry point or by
``module:attr``. Functions may be given as ``module:attr`` too, so that reading a config does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from roboloop.core.resolve import resolve
from roboloop.core.types import Algorithm, AlgorithmConfig, EnvSpec, PortablePolicy, State
from roboloop.envs.config import EnvConfig

if TYPE_CHECKING:
    from roboloop.data.dataset import Dataset

LearnsFrom = Literal["replay", "rollouts", "dataset"]
Function = Callable[..., Any] | str


class EpisodeSource(Protocol):
    """Episodes of a dataset that a run learns from."""

    @property
    def dataset(self) -> Dataset:
        """Where they are."""
        ...

    @property
    def rows(self) -> Any:
        """Which of the dataset's episodes."""
        ...


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint of another run, for algorithms that begin with one."""

    config: Any
    """Its whole experiment."""
    spec: EnvSpec
    """Of its environment."""
    state: State
    """What its algorithm saved."""
    policy: Callable[[], PortablePolicy]
    """Loads its policy."""


@dataclass(frozen=True)
class Setup:
    """What a run hands to the algorithm that it makes."""

    config: Any
    """The algorithm's own section of the config."""
    spec: EnvSpec
    """Shapes and bounds of observations and actions."""
    env: EnvConfig
    """The environment's section of the config."""
    num_envs: int
    """Environments in each rollout that is learned from."""
    seed: int
    """Of the run; ``core/rng.py`` derives streams from it."""
    device: str
    """Where networks live."""
    experiment: Any
    """The whole config, for the few that need more of it."""
    sources: Sequence[EpisodeSource] = ()
    """Of an algorithm that learns from a dataset: its episodes, by task where each task has its own."""
    open_run: Callable[[str, str], SavedRun] | None = None
    """Opens another run's checkpoint: ``open_run(path, "best")``; None while a policy is loaded."""

    @property
    def frame_stack(self) -> int:
        """Observations that the policy sees at once."""
        return self.env.frame_stack


def _nothing(experiment: Any) -> None:
    """Refuse nothing."""


def _never(config: Any) -> bool:
    return False


def _own(config: Any) -> Any:
    return config


@dataclass(frozen=True)
class AlgorithmSpec:
    """What an algorithm is called, what it learns from, and how it and its policy are made."""

    name: str
    config: Callable[[], AlgorithmConfig]
    """Its section of the config: a frozen dataclass with defaults, a field ``name`` and a method ``check()``.

    What learns from a replay or a dataset has ``batch_size``; from rollouts ``rollout_steps`` and, if an update may
    take fewer environments than there are, ``batch_envs``; from a dataset ``context``, the steps of a window. A field
    with ``metadata=RESOURCE`` may change when a run is resumed. If there is ``code()``, it yields the keys that name
    code, each with its ``module:attr``: in a saved run they are used only if they are a plug-in's own or typed again.
    """
    learns_from: LearnsFrom
    make: Function
    """``make(setup) -> Algorithm``."""
    load_policy: Function
    """``load_policy(setup, state) -> PortablePolicy``, where ``state`` is what the algorithm's ``state()`` returned."""
    warmup: Function = "roboloop.algos.policy:UniformPolicy"
    """``warmup(spec) -> PortablePolicy``: who acts before anything is learned; only with a replay."""
    frame_stack: bool = True
    """Whether it can learn from stacked observations."""
    task_sets: bool = True
    """Whether it can learn a set of tasks, such as metaworld/mt3."""
    rollout: Callable[[Any], Any] = _own
    """Where ``rollout_steps`` and ``batch_envs`` are in its config."""
    by_task: Callable[[Any], bool] = _never
    """Whether a batch of a dataset has as many windows of each task, given the config."""
    check: Callable[[Any], None] = _nothing
    """``check(experiment)`` raises ConfigError where the rest of a config contradicts the algorithm."""

    def build(self, setup: Setup) -> Algorithm:
        """Make the algorithm."""
        algo: Algorithm = resolve(self.make)(setup)
        return algo

    def policy(self, setup: Setup, state: State) -> PortablePolicy:
        """Load the policy of a saved state."""
        policy: PortablePolicy = resolve(self.load_policy)(setup, state)
        return policy

    def warmup_policy(self, spec: EnvSpec) -> PortablePolicy:
        """Return who acts before anything is learned."""
        policy: PortablePolicy = resolve(self.warmup)(spec)
        return policy
