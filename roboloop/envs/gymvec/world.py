"""Gymnasium's vector environments, ``gymvec/<id>``: one simulator steps the environments of a whole group by one call.

The three ways in which vector environments begin the next episode (``metadata["autoreset_mode"]``) become one: every
result holds the true last observation of an episode, and says where a step was only a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK
from roboloop.core.types import Array, State
from roboloop.envs.env import EpisodeEnv, Outcome, Task, repeated
from roboloop.envs.gym.world import SUCCESS
from roboloop.envs.gymvec import source
from roboloop.envs.gymvec.batch import BatchReader, BatchWriter, as_numpy
from roboloop.envs.gymvec.suite import GymVecEnvConfig
from roboloop.envs.replay import ReplayWorld
from roboloop.envs.spaces import columns
from roboloop.envs.vector import VectorResult, VectorWorld

DEFAULT_HORIZON = 1000
"""For ids that register no limit of their own, where the clock is ours."""
FINAL_OBS = ("final_obs", "final_observation")
"""Where environments that reset in the same step put the last observations."""
STATE = ("get_state", "set_state")


class GymVectorWorld:
    """A vector environment behind ``VectorWorld``."""

    def __init__(self, task: str, env: Any, horizon: int) -> None:
        self._task, self.env, self.num_envs = task, env, env.num_envs
        self.mode = _mode(task, env)
        self.can_save = all(callable(getattr(env, name, None)) for name in STATE)
        self._horizon, self._age = horizon, np.zeros(env.num_envs, np.int64)
        self._action = columns(env.single_action_space)
        self.reader = BatchReader(env.single_observation_space, env.num_envs, self._action.choices)
        self._write = BatchWriter(env.single_action_space)
        self._begun: Array | None = None  # first observations that came with the last step
        self._waits = np.zeros(env.num_envs, bool)  # whose next step is a reset

    def reset(self, seeds: Sequence[int]) -> Array:
        """Begin an episode everywhere; where columns cannot be reset alone, the first seed is that of all to come."""
        own = self.mode == AutoresetMode.DISABLED
        obs, info = self.env.reset(seed=list(seeds) if own else int(seeds[0]))
        if any(self._action.choices) and MASK in info:
            raise ConfigError(f"env 'gymvec/{self._task}': put the action mask into the observation, not into the info")
        self._write.like = _first_leaf(obs)
        self._age[:] = 0
        self._waits[:] = False
        return self.reader(obs)

    def step(self, action: Array) -> VectorResult:
        """Take a step."""
        out = self.env.step(self._write(action))
        if not (isinstance(out, tuple) and len(out) == 5):
            what = f"{len(out)} values" if isinstance(out, tuple) else f"a {type(out).__name__}"
            wanted = "(observations, rewards, terminated, truncated, info)"
            raise ConfigError(f"env 'gymvec/{self._task}': step() returned {what}, not {wanted}")
        given, reward, terminated, truncated, info = out
        obs, is_reset = self.reader(given), self._waits.copy()
        self._age[is_reset] = -1
        self._age += 1
        end, cut = (np.array(as_numpy(x), bool).reshape(-1) & ~is_reset for x in (terminated, truncated))
        success = _named(info, SUCCESS, self.num_envs)
        if self.mode == AutoresetMode.DISABLED:
            cut |= self._age >= self._horizon
        elif (self._age >= self._horizon)[~(end | cut | is_reset)].any():
            raise ConfigError(
                f"env 'gymvec/{self._task}' has episodes of more than {self._horizon} steps: set "
                "--env.max-episode-steps"
            )
        ended = end | cut
        if self.mode == AutoresetMode.SAME_STEP and ended.any():
            self._begun = obs
            obs = self._last_obs(obs, ended, info)
            success = np.fmax(success, _named(info.get("final_info", {}), SUCCESS, self.num_envs))
        self._waits = ended if self.mode == AutoresetMode.NEXT_STEP else np.zeros_like(ended)
        paid = np.where(is_reset, 0.0, np.asarray(as_numpy(reward), np.float64).reshape(-1))
        return VectorResult(obs, paid, end, cut, np.where(is_reset, np.nan, success), is_reset)

    def _last_obs(self, obs: Array, ended: Array, info: dict[str, Any]) -> Array:
        """Return the observations with the true last ones of the episodes that ended."""
        found = next((info[name] for name in FINAL_OBS if info.get(name) is not None), None)
        if found is None:
            raise ConfigError(
                f"env 'gymvec/{self._task}' resets in the same step and gives no info['final_obs']: without the true "
                "last observations values cannot be bootstrapped"
            )
        last = obs.copy()
        if isinstance(found, np.ndarray) and found.dtype == object:
            for column in np.flatnonzero(ended).tolist():
                last[column] = self.reader.one.read(as_numpy(found[column]), {})
        else:
            last[ended] = self.reader(found)[ended]
        return last

    def begin(self, ended: Array, seeds: Callable[[], list[int]]) -> Array | None:
        """Begin the next episodes of some columns, by a reset of them, or as the environment does it by itself."""
        self._age[ended] = 0
        if self.mode == AutoresetMode.DISABLED:
            mask, every = np.zeros(self.num_envs, bool), [0] * self.num_envs
            mask[ended] = True
            for column, seed in zip(ended.tolist(), seeds(), strict=True):
                every[column] = seed
            return self.reader(self.env.reset(seed=every, options={"reset_mask": mask})[0])
        if self.mode == AutoresetMode.SAME_STEP:
            return self._begun
        if not self._waits.all():
            return None
        # all wait at once: nobody's step is lost by one that only resets
        return self.step(np.zeros((self.num_envs, len(self._action.low)), np.float32)).obs

    def render(self) -> Array:
        """Return a picture of the first environment."""
        try:
            frames: Any = self.env.render()
        except NotImplementedError:
            frames = None
        if frames is None or not len(frames):
            raise ConfigError(f"env 'gymvec/{self._task}' gives no pictures: it has no render mode 'rgb_array'")
        picture: Array = np.asarray(as_numpy(frames[0])).astype(np.uint8)
        return picture

    def get_state(self) -> State:
        """Return the environment's own state, and who waits."""
        return {"env": self.env.get_state(), "age": self._age.copy(), "waits": self._waits.copy()}

    def set_state(self, state: State) -> None:
        """Restore both."""
        self.env.set_state(state["env"])
        self._age[:], self._waits = state["age"], np.array(state["waits"], bool)

    def close(self) -> None:
        """Release the simulator."""
        self.env.close()


class FirstColumn(ReplayWorld):
    """A vector environment of one column as a world of its own, for all that looks at one environment."""

    def __init__(self, world: GymVectorWorld, action_dim: int) -> None:
        super().__init__(action_dim)
        self._world = world

    def start(self, seed: int) -> Array:
        """Begin the episode of this seed."""
        first: Array = self._world.reset([seed])[0, ...]  # an array also where it is a record
        return first

    def advance(self, action: Array, repeat: int) -> Outcome:
        """Take a step."""
        return repeated(self._tick, action, repeat)

    def _tick(self, action: Array) -> Outcome:
        result = self._world.step(action[None])
        success = float(result.success[0])
        known = None if np.isnan(success) else success
        ended, cut = bool(result.terminated[0]), bool(result.truncated[0])
        return Outcome(result.obs[0, ...].copy(), float(result.reward[0]), ended, cut, known)

    def render(self) -> Array:
        """Return its picture."""
        return self._world.render()

    def close(self) -> None:
        """Release the simulator."""
        self._world.close()


def _mode(task: str, env: Any) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"env 'gymvec/{task}' does not say how it resets: set metadata['autoreset_mode'] to a gymnasium.vector."
            "AutoresetMode"
        )
    return mode


def _first_leaf(obs: Any) -> Any:
    while isinstance(obs, dict | tuple):
        obs = next(iter(obs.values() if isinstance(obs, dict) else obs))
    return obs


def _named(info: Any, names: Sequence[str], num_envs: int) -> Array:
    """Return a number of an info for each column, NaN where there is none."""
    for name in names:
        if isinstance(info, dict) and name in info:
            try:
                values = np.array(as_numpy(info[name]), np.float64).reshape(num_envs)
            except (TypeError, ValueError):
                what = f"info[{name!r}] of step() is {info[name]!r:.60}"
                raise ConfigError(f"{what}: give one bool or number for each of {num_envs} environments") from None
            there = np.asarray(as_numpy(info.get(f"_{name}", np.ones(num_envs, bool))), bool)
            return np.where(there, values, np.nan)
    return np.full(num_envs, np.nan)


def _make(task: str, cfg: GymVecEnvConfig, num_envs: int, evaluation: bool) -> GymVectorWorld:
    if cfg.action_repeat != 1:
        raise ConfigError(f"env.action_repeat is 1 for gymvec/{task}: a step may already begin another episode")
    wished = cfg.eval_max_episode_steps if evaluation else cfg.max_episode_steps
    env, is_told = source.build(task, cfg, num_envs, wished)
    is_ours = _mode(task, env) == AutoresetMode.DISABLED
    if wished is not None and not is_told and not is_ours:
        raise ConfigError(f"gymvec/{task} ends episodes by itself and takes no max_episode_steps: leave it out")
    limit = wished or source.find(task).max_episode_steps
    if limit is None and not is_ours:
        raise ConfigError(f"gymvec/{task} registers no max_episode_steps: say its limit with --env.max-episode-steps")
    return GymVectorWorld(task, env, limit or DEFAULT_HORIZON)


def make_vector(task: str, cfg: GymVecEnvConfig, num_envs: int) -> VectorWorld:
    """Make ``gymvec/<id>`` with this many columns, for training."""
    return _make(task, cfg, num_envs, False)


def make(task: str, cfg: GymVecEnvConfig, evaluation: bool) -> EpisodeEnv:
    """Make ``gymvec/<id>`` with one column and our clock, for all that steps one environment."""
    world = _make(task, cfg, 1, evaluation)
    env = world.env
    low, high, choices = columns(env.single_action_space)
    seen = world.reader.one
    protocol = {"suite": f"gymnasium {gymnasium.__version__}", "task": task.rpartition(":")[2]}
    return EpisodeEnv(
        FirstColumn(world, len(low)),
        Task(
            obs_shape=seen.shape,
            obs_dtype=seen.dtype,
            action_low=low,
            action_high=high,
            horizon=cfg.horizon(source.find(task).max_episode_steps or DEFAULT_HORIZON, evaluation),
            protocol=protocol if world.can_save else {**protocol, "resumed": "with new episodes"},
            action_choices=choices,
        ),
    )
