"""Windows over transitions: what a discriminator of dynamics sees of a step, in a dataset and in a rollout alike.

The window of step t is s[t - k] for the state lags, a[t - k] for the action lags, s[t + 1], and where it looks ahead
a[t + j], s[t + j + 1] for j = 1, 2, ... It never reaches into another episode: s[t + 1] is the true successor, also
where the episode ended with the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from roboloop.algos.gail.discriminator import Steps
from roboloop.algos.gail.gail import DiscriminatorFeatures
from roboloop.algos.policy import in_bounds
from roboloop.algos.simgan.dynamics_config import DynamicsConfig, Padding
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import Array, EnvSpec, Rollout, State
from roboloop.data.dataset import Dataset
from roboloop.data.experts import ExpertPart
from roboloop.data.transitions import Transitions


class WindowSource(Protocol):
    """Where the robot's state and action are in what was collected."""

    def states(self, obs: Array) -> Array:
        """Return the robot's states ``[..., state_dim]`` in observations."""
        ...

    def actions(self, obs: Array, action: Array) -> Array:
        """Return the robot's actions ``[..., action_dim]``, as they were taken, of observations and actions."""
        ...


@dataclass(frozen=True)
class Identified:
    """A simulator whose parameters are the action: observations end with the robot's state and what it will do."""

    state_dim: int
    action_dim: int

    def states(self, obs: Array) -> Array:
        """Return what stands before the robot's action."""
        return obs[..., -self.state_dim - self.action_dim : -self.action_dim]

    def actions(self, obs: Array, action: Array) -> Array:
        """Return what stands last."""
        return obs[..., -self.action_dim :]


@dataclass(frozen=True)
class RobotColumns:
    """The robot's own environment: observations begin with its newest state, a history may follow."""

    state_dim: int
    spec: EnvSpec

    def states(self, obs: Array) -> Array:
        """Return the first numbers."""
        return obs[..., : self.state_dim]

    def actions(self, obs: Array, action: Array) -> Array:
        """Return the actions within the environment's bounds."""
        return in_bounds(action, self.spec)


class Around(NamedTuple):
    """T steps of B environments, with M rows before them that only windows look back on."""

    state: Array  # [M + T, B, state_dim]
    action: Array  # [M + T, B, action_dim]
    next_state: Array  # [T, B, state_dim], the true successor
    age: Array  # [T, B] steps of the episode before this one, as far as they are here
    last: Array  # [T, B] row of the last step of the episode that is here
    is_closed: Array  # [T, B] whether the world ended with that step


class TransitionWindows(NamedTuple):
    """One window for each step."""

    rows: Array  # [T, B, width] float32
    is_valid: Array  # [T, B]


@dataclass(frozen=True)
class WindowShape:
    """Which states and actions around a step make up its window."""

    state_dim: int
    action_dim: int
    state_lags: tuple[int, ...] = (0,)
    action_lags: tuple[int, ...] = (0,)
    padding: Padding = "repeat"
    ahead: int = 0
    after_end: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.after_end and len(self.after_end) != self.state_dim:
            raise ConfigError(f"algo.after_end has {len(self.after_end)} numbers, a state {self.state_dim}")

    @classmethod
    def of(cls, cfg: DynamicsConfig, state_dim: int, action_dim: int) -> WindowShape:
        """Return the shape that a config asks for."""
        return cls(state_dim, action_dim, cfg.state_lags, cfg.action_lags, cfg.padding, cfg.ahead, cfg.after_end)

    @property
    def max_lag(self) -> int:
        """Rows that a window looks back on."""
        return max((*self.state_lags, *self.action_lags), default=0)

    @property
    def width(self) -> int:
        """Numbers in a window."""
        states = len(self.state_lags) + 1 + self.ahead
        return states * self.state_dim + (len(self.action_lags) + self.ahead) * self.action_dim

    @property
    def spec(self) -> EnvSpec:
        """What a discriminator of windows is made for; it looks at no action beside them."""
        return EnvSpec((self.width,), np.dtype(np.float32), (), (), 0)

    def build(self, around: Around) -> TransitionWindows:
        """Return the windows of all steps, and which of them are whole."""
        num_steps, num_envs = around.age.shape
        before = len(around.state) - num_steps
        t, env = np.arange(num_steps)[:, None], np.arange(num_envs)

        def back(rows: Array, lag: int) -> Array:
            values: Array = rows[before + t - np.minimum(lag, around.age), env]
            return values

        parts = [back(around.state, lag) for lag in self.state_lags]
        parts += [back(around.action, lag) for lag in self.action_lags]
        parts.append(around.next_state)
        is_valid = np.ones((num_steps, num_envs), bool)
        if self.padding == "mask":
            is_valid &= around.age >= self.max_lag
        if self.ahead:
            # what the clock or the end of a rollout hides is not known, what follows the end of the world is
            is_valid &= (around.last - t >= self.ahead) | around.is_closed
        after_end = np.asarray(self.after_end or (0.0,), np.float32)
        for step in range(1, self.ahead + 1):
            row, is_after = np.minimum(t + step, around.last), (t + step > around.last)[..., None]
            parts.append(np.where(is_after, np.float32(0.0), around.action[before + row, env]))
            parts.append(np.where(is_after, after_end, around.next_state[row, env]))
        return TransitionWindows(np.concatenate(parts, axis=-1, dtype=np.float32), is_valid)

    def of_episode(self, state: Array, action: Array, terminated: bool) -> TransitionWindows:
        """Return the windows of a whole episode, states ``[L + 1, ...]`` and actions ``[L, ...]``, as one column."""
        length = len(action)
        row = np.arange(length)[:, None]
        last, is_closed = np.full_like(row, length - 1), np.full((length, 1), terminated)
        return self.build(Around(state[:-1, None], action[:, None], state[1:, None], row, last, is_closed))

    def read(self, data: Dataset, rows: Array) -> ExpertPart:
        """Return the windows of some episodes of the robot's own environment, those that are whole."""
        source, parts = RobotColumns(self.state_dim, data.schema.spec), []
        for row in rows.tolist():
            episode = data.episode(row)
            states = source.states(episode.obs)
            windows = self.of_episode(
                states, source.actions(episode.obs[:-1], episode.action), bool(episode.terminated[-1])
            )
            some = windows.is_valid[:, 0]
            none = np.zeros((len(some), 0), np.float32)
            columns = (windows.rows[:, 0], none, episode.raw_reward, states[1:], episode.terminated, episode.truncated)
            parts.append(Transitions(*(column[some] for column in columns)))
        found = Transitions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if not len(found.obs):
            raise DataError(f"no episode of {data.directory} is long enough for windows of {self.max_lag} steps back")
        ends = found.terminated | found.truncated
        return ExpertPart(found, Transitions(*(column[ends] for column in found)), len(found.obs))


class TransitionInput:
    """Shows windows over rollouts; rows that the next rollout's windows look back on are kept for each environment.

    Where a window looks ahead, the last steps of a rollout have none yet: they are left out, like those before the
    clock's end. PPO learns from a rollout once, so that nothing could be paid for them later.
    """

    def __init__(self, shape: WindowShape, source: WindowSource, num_envs: int) -> None:
        self.shape, self._source = shape, source
        self._state = np.zeros((shape.max_lag, num_envs, shape.state_dim), np.float32)
        self._action = np.zeros((shape.max_lag, num_envs, shape.action_dim), np.float32)
        self._age = np.zeros(num_envs, np.int64)

    def look(self, rollout: Rollout) -> DiscriminatorFeatures:
        """Return the windows of all steps."""
        states = self._source.states(rollout.obs)
        next_state = np.array(states[1:])
        for end in rollout.episodes:
            next_state[end.t, end.env - rollout.first_env] = self._source.states(end.last_obs)
        state = np.concatenate((self._state, states[:-1]))
        action = np.concatenate((self._action, self._source.actions(rollout.obs[:-1], rollout.action)))
        last, is_closed = _ends(rollout)
        windows = self.shape.build(Around(state, action, next_state, self._ages(rollout), last, is_closed))
        kept = len(state) - self.shape.max_lag
        self._state, self._action = state[kept:], action[kept:]
        rows = windows.rows.reshape(-1, self.shape.width)
        steps = Steps(rows, np.zeros((len(rows), 0), np.float32), rollout.terminated.reshape(-1).copy())
        return DiscriminatorFeatures(steps, windows.is_valid.reshape(-1))

    def _ages(self, rollout: Rollout) -> Array:
        """Return how many steps of its episode come before each step, and remember it for the next rollout's first."""
        is_end = rollout.terminated | rollout.truncated
        ages = np.zeros((len(is_end) + 1, is_end.shape[1]), np.int64)
        ages[0] = self._age
        ages[0, [env - rollout.first_env for env in rollout.cut]] = 0  # another episode than the rows that are kept
        for t, ended in enumerate(is_end):
            ages[t + 1] = np.where(ended, 0, ages[t] + 1)
        self._age = np.minimum(ages[-1], self.shape.max_lag)
        return ages[:-1]

    def state(self) -> State:
        """Return the rows that are kept, and of what they are made."""
        return {
            "state_dim": self.shape.state_dim, "action_dim": self.shape.action_dim, "state": self._state.copy(),
            "action": self._action.copy(), "age": self._age.copy(),
        }  # fmt: skip

    def load(self, state: State) -> None:
        """Restore the rows that were kept."""
        self._state, self._action, self._age = (np.array(state[name]) for name in ("state", "action", "age"))


def _ends(rollout: Rollout) -> tuple[Array, Array]:
    """Return the row of the last step of each step's episode in the rollout, and whether the world ended with it."""
    num_steps, num_envs = rollout.terminated.shape
    t = np.arange(num_steps)[:, None]
    ends = np.where(rollout.terminated | rollout.truncated, t, num_steps - 1)
    last: Array = np.minimum.accumulate(ends[::-1])[::-1]
    return last, rollout.terminated[last, np.arange(num_envs)]
