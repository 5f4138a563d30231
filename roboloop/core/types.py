"""The records that travel between packages, and the protocols that join them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[str, Any]
"""Nested dict whose leaves are arrays, tensors or plain JSON values."""
Metrics: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class EnvSpec:
    """What a policy and a store must know of an environment before the first reset."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    """Of a number, or of a record with named fields (``core/fields.py``); then the shape is ()."""
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    max_episode_steps: int
    protocol: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Written into every result: task, reward version, horizon, goal mode, ..."""
    action_choices: tuple[int, ...] = ()
    """Per action column the number of choices, 0 = continuous; empty = all continuous. Actions are always float32
    columns: a choice is stored as its number."""
    tasks: tuple[str, ...] = ()
    """Names of its tasks, the main one first; empty = one nameless task."""
    one_task_each: bool = False
    """Whether environment e only ever does task e mod K; else each environment can be asked for all of them."""

    @property
    def own_tasks(self) -> tuple[str, ...]:
        """The tasks of which each environment does one; empty where all do the same."""
        return self.tasks if self.one_task_each else ()

    @property
    def action_dim(self) -> int:
        """Number of action columns."""
        return len(self.action_low)

    @property
    def is_continuous(self) -> bool:
        """Whether no action column is a choice."""
        return not any(self.action_choices)


class Env(Protocol):
    """One simulator or robot; every episode begins with an explicit seed that fixes all its randomness."""

    @property
    def spec(self) -> EnvSpec:
        """Shapes, bounds, horizon and protocol."""
        ...

    def reset(self, seed: int) -> Array:
        """Begin an episode and return its first observation."""
        ...

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info (``success`` where the env knows it)."""
        ...

    def render(self) -> Array:
        """Return a picture, ``[H, W, 3]`` uint8."""
        ...

    def get_state(self) -> State:
        """Return all that a new instance needs to go on bit for bit."""
        ...

    def set_state(self, state: State) -> None:
        """Continue from what ``get_state`` returned."""
        ...

    def close(self) -> None:
        """Release the simulator."""
        ...


class EpisodeEnd(NamedTuple):
    """One finished episode, as the sampler saw it.

    One of length 0 says that row ``t`` is no step: the environment was being reset, in a step of its simulator, after
    the episode of this number. Nothing is learned from such a row.
    """

    env: int
    episode: int
    length: int
    episode_return: float
    """Sum of the raw rewards: the env's own objective, before any shaping."""
    success: float
    """1.0 if reached at any step, 0.0 if not, NaN where the env does not say."""
    t: int
    """Row of the rollout in which it ended."""
    last_obs: Array
    """The true last observation, as the policy would see it; ``obs[t + 1]`` already belongs to the next episode."""
    last_value: float = 0.0
    """The acting policy's value of ``last_obs`` where the episode was truncated: what the learner bootstraps from."""
    shaped_return: float = 0.0
    """Sum of the rewards that were learned from."""
    lost: bool = False
    """Cut short by a fault of the simulator: bootstrapped like a truncation, but not an episode to report."""
    counted: Mapping[str, float] | None = None
    """What else the environment said of the whole episode."""


class Rollout(NamedTuple):
    """Experience with leading dims ``[T, B]``: T steps of B environments."""

    obs: Array  # [T + 1, B, ...]: what follows row t is row t + 1, or an EpisodeEnd's last_obs where one ended
    action: Array  # [T, B, A] as sent; the env clips to its bounds
    reward: Array
    raw_reward: Array  # the env's own objective, before shaping; equal to reward where nothing is shaped
    terminated: Array  # the world ended: the value of what follows is zero
    truncated: Array  # the clock or an operator ended it: bootstrap through the last observation
    log_prob: Array  # of the action under the policy that took it; zero where the policy does not say
    value: Array  # [T + 1, B] of obs under that policy; zero where the policy does not say
    memory: Array  # [B, M] recurrent state before the first step; zero where an episode begins
    version: Array  # [B] of the policy that acted
    episodes: list[EpisodeEnd]
    cut: tuple[int, ...] = ()  # envs whose running episode was lost (dead worker) before the first step
    first_env: int = 0  # the columns are the environments from this one on

    @property
    def num_steps(self) -> int:
        """Environment steps in this rollout."""
        return int(self.reward.size)


class BatchSpec(NamedTuple):
    """What an algorithm needs from ``Store.sample``."""

    size: int
    n_step: int
    gamma: float
    frame_stack: int
    num_tasks: int = 1
    """Parts of a batch, one after another and equally large: part k is of environments e with e mod K = k."""
    shift_px: int = 0
    """Pictures are shifted by up to so many pixels either way, each picture of each observation by its own draw."""


class Batch(NamedTuple):
    """A sampled batch; leaves are ``[N, ...]`` float32 arrays, observations keep their dtype."""

    obs: Array
    action: Array
    reward: Array  # discounted sum over the n-step window
    next_obs: Array  # observation that ends the window
    discount: Array  # gamma^m, or zero where the world ended inside the window


class WindowBatch(NamedTuple):
    """B windows of up to K consecutive steps of one episode each, padded on the left."""

    obs: Array  # [B, K, ...] in the spec's dtype
    action: Array  # [B, K, A] float32; a choice is its number
    return_to_go: Array  # [B, K] float32: undiscounted raw reward of this step and all that follow in the episode
    t: Array  # [B, K] int32: step within the episode
    mask: Array  # [B, K] bool: False where padded; what lies there means nothing


class Decision(NamedTuple):
    """What a policy decided for B observations."""

    action: Array  # [B, A] in the environment's own units
    memory: Array  # [B, M] recurrent state after this step
    log_prob: Array | None = None  # [B]; only policies that learn from their own actions say it
    value: Array | None = None  # [B]


class Policy(Protocol):
    """Maps observations to actions: batched, numpy in and out, no gradients."""

    memory_size: int
    """Floats of recurrent state per environment; 0 = none."""

    @property
    def version(self) -> int:
        """Which weights these are: grows with every update."""
        ...

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide for observations ``[B, ...]``; the caller zeroes an environment's memory when its episode begins."""
        ...


@runtime_checkable
class RewardAware(Protocol):
    """A policy that must know what its last action brought, such as one that is told how much return to reach."""

    def observe_reward(self, memory: Array, reward: Array) -> Array:
        """Return the memory ``[B, M]`` after the raw rewards ``[B]`` of the step just taken."""
        ...


class PortablePolicy(Policy, Protocol):
    """A policy that another process can rebuild from plain data and follow by its weights."""

    def blueprint(self) -> dict[str, Any]:
        """Return JSON data: ``kind`` (``module:Class``) whose ``from_blueprint`` builds the same policy anew."""
        ...

    def write_weights(self, out: Array) -> None:
        """Write all that acting depends on, normaliser included, as ``num_weights`` float32 numbers."""
        ...

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        ...

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        ...


class Stateful(Protocol):
    """Anything whose next step depends on its past: a checkpoint is the union of these."""

    def state(self) -> State:
        """Return everything the next step depends on."""
        ...

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        ...


@runtime_checkable
class EpisodeAware(Protocol):
    """An algorithm that learns from whole episodes too, such as what to try next."""

    def on_episode_end(self, rollout: Rollout, newest: Callable[[int, int], Batch]) -> list[Metrics]:
        """Take note of episodes that ended; ``newest(env, n)`` are the last n steps of an environment's last one.

        Returned is what there is to log of each.
        """
        ...


class AlgorithmConfig(Protocol):
    """An algorithm's section of the config: a frozen dataclass with defaults."""

    @property
    def name(self) -> str:
        """By which name the algorithm is found."""
        ...

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        ...


class Algorithm(Stateful, Protocol):
    """Nets and losses; never envs, samplers or files."""

    num_updates: int
    """Gradient steps taken so far."""
    progress: float
    """Fraction of the training that was done before the newest steps; the runner sets it, for schedules."""

    @property
    def policy(self) -> PortablePolicy:
        """The policy that collects and is evaluated."""
        ...

    def update(self, batch: Any) -> Metrics:
        """Learn from what its store gives: a ``Batch`` of transitions, a ``Rollout``, or a ``WindowBatch``."""
        ...

    def messages(self) -> list[str]:
        """Return what happened to its processes since this was asked last, one line each."""
        ...

    def close(self) -> None:
        """Release processes and shared memory."""
        ...


class Sampler(Stateful, Protocol):
    """Collects experience; the arrays of a rollout are valid until the next call."""

    def collect(self, policy: PortablePolicy) -> Rollout:
        """Return steps of a policy that explores."""
        ...

    @property
    def in_tick(self) -> bool:
        """Whether a robot moves in this process and soon needs its next action: nothing slow may be done now."""
        ...

    def rest(self) -> list[Rollout]:
        """Bring whatever moves to a stand, and return what had been collected meanwhile."""
        ...

    def faults(self) -> list[str]:
        """Return what went wrong and was mended since this was last asked."""
        ...

    def timing(self) -> dict[str, Any]:
        """Return how deadlines were kept since this was last asked."""
        ...

    def stats(self) -> dict[str, float]:
        """Return metrics of the sampler itself."""
        ...

    def close(self) -> None:
        """Release simulators and processes."""
        ...


class Store(Protocol):
    """Takes what was collected and gives what is learned from."""

    journaled: bool
    """Whether its rows are kept in a journal beside the checkpoints."""

    def add(self, rollout: Rollout) -> None:
        """Take a rollout."""
        ...

    def sample(self) -> Any:
        """Return what the algorithm's update takes."""
        ...

    def attach(self, journal: Any) -> None:
        """Keep all rows from now on in a journal that already holds the rows there are."""
        ...

    def commit(self) -> Any:
        """Make all rows durable and return where the journal ends."""
        ...

    def state(self) -> State:
        """Return what the journal does not hold."""
        ...

    def load(self, state: State, records: Iterable[Any]) -> None:
        """Restore rows from a journal's records, then the rest."""
        ...


class UpdatesDue(Stateful, Protocol):
    """Says which updates to take after a rollout."""

    def __call__(self, step: int, episode_ended: bool) -> Iterable[int]:
        """Yield once per update that is due now; one that looks at the clock decides before each."""
        ...


@runtime_checkable
class OffPolicy(Protocol):
    """An algorithm that learns from batches of a replay."""

    @property
    def needs(self) -> BatchSpec:
        """Of what size and shape."""
        ...


@runtime_checkable
class Holding(Protocol):
    """What can stay where it is: a robot, or an environment on one."""

    def hold(self) -> None:
        """Stay where the arm is now."""
        ...
