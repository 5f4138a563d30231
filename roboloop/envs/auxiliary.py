"""Rewards as functions of a transition: auxiliary tasks, and a reward of one's own over any environment.

Nothing but the transition is stored: rewards and successes are pure functions of it that live beside the environment,
so one transition trains all K intentions, and a learner needs no simulator to know them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from roboloop.core.errors import ConfigError
from roboloop.core.raised import CRASHES, where
from roboloop.core.tasks import task_index
from roboloop.core.types import Array, Env, EnvSpec, State
from roboloop.envs.env import Outcome

TransitionReward: TypeAlias = Callable[[Array, Array, Array], Any]
"""``reward(obs, action, next_obs)`` of N transitions: rewards ``[N]``, or rewards and successes."""


class AuxiliaryTasks(Protocol):
    """The tasks of one environment; observations are single ones, never stacks, and arrays have N rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """K names, the main task first; the same as ``EnvSpec.tasks``."""
        ...

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``."""
        ...

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success, bool ``[N, K]``."""
        ...


class TaskFunctions:
    """Auxiliary tasks given as one function each, the main task first."""

    def __init__(self, functions: Mapping[str, TransitionReward], origin: str = "tasks") -> None:
        if not functions or not all(isinstance(name, str) and callable(f) for name, f in functions.items()):
            raise ConfigError(f"{origin} must be a dict from names to functions of a transition")
        self.names = tuple(functions)
        self._rewards = [TransitionFunction(function, f"{origin}: {name}") for name, function in functions.items()]

    def task_rewards(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return the rewards of transitions, float32 ``[N, K]``."""
        return np.stack([reward(obs, action, next_obs)[0] for reward in self._rewards], axis=1)

    def task_successes(self, obs: Array, action: Array, next_obs: Array) -> Array:
        """Return whether transitions end in success; a task that says nothing never does."""
        found = [reward(obs, action, next_obs)[1] for reward in self._rewards]
        nothing = np.zeros(len(obs), bool)
        return np.stack([nothing if success is None else success for success in found], axis=1)


class TransitionFunction:
    """A user's reward function, whose answer is checked: N finite numbers, and N successes if it gives any."""

    def __init__(self, function: TransitionReward, origin: str) -> None:
        self._function, self._where = function, origin

    def __call__(self, obs: Array, action: Array, next_obs: Array) -> tuple[Array, Array | None]:
        """Return rewards, float32 ``[N]``, and successes, bool ``[N]``, or none where the function gives none."""
        try:
            answer = self._function(obs, action, next_obs)
        except CRASHES as error:  # the user's function may raise anything
            raise ConfigError(f"{self._where} raised {where(error)}") from error
        rewards, successes = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        reward = np.asarray(rewards, np.float32)
        if reward.shape != (len(obs),) or not np.isfinite(reward).all():
            what = "numbers that are not finite" if reward.shape == (len(obs),) else f"an array {reward.shape}"
            raise ConfigError(f"{self._where} must return {len(obs)} finite rewards for {len(obs)} transitions: {what}")
        if successes is None:
            return reward, None
        success = np.asarray(successes, bool)
        if success.shape != (len(obs),):
            raise ConfigError(f"{self._where} must return {len(obs)} successes, not an array {success.shape}")
        return reward, success


class TransitionRewardWrapper:
    """An environment whose reward is a function of its transitions; all else is passed on, a robot's calls too."""

    def __init__(self, env: Env, reward: TransitionFunction) -> None:
        self._env, self._reward = env, reward
        self._obs: Array = np.zeros(env.spec.obs_shape, env.spec.obs_dtype)
        self._action: Array = np.zeros(env.spec.action_dim, np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, seed: int) -> Array:
        """Begin an episode and return its first observation."""
        self._obs = self._env.reset(seed)
        return self._obs

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step; ``raw_reward`` is the environment's own."""
        obs, own, terminated, truncated, info = self._env.step(action)
        taken = np.asarray(info.get("sent_action", action), np.float32)
        reward, success = self._of(taken, obs)
        info = self._judged({"raw_reward": own, **info}, reward, success)
        return obs, reward, terminated, truncated, info

    def _of(self, action: Array, obs: Array) -> tuple[float, float | None]:
        """Return reward and success of the step that led to an observation."""
        reward, success = self._reward(self._obs[None], action[None], obs[None])
        self._obs = obs
        return float(reward[0]), None if success is None else float(success[0])

    def _judged(self, info: dict[str, Any], reward: float, success: float | None) -> dict[str, Any]:
        return info if success is None else {**info, "success": success}

    # what a robot in real time is asked for

    def begin(self, seed: int) -> Array:
        """Begin an episode; the same as ``reset``."""
        self._obs = self._env.begin(seed)  # type: ignore[attr-defined]
        return self._obs

    def first_look(self) -> Array:
        """Return the first observation once more, as it is now."""
        self._obs = self._env.first_look()  # type: ignore[attr-defined]
        return self._obs

    def send(self, action: Array) -> Array:
        """Send an action and return at once the one that was really taken."""
        self._action = self._env.send(action)  # type: ignore[attr-defined]
        return self._action

    def observe(self) -> Outcome:
        """Return what the last action led to."""
        out: Outcome = self._env.observe()  # type: ignore[attr-defined]
        own = out.reward if out.raw_reward is None else out.raw_reward
        reward, success = self._of(np.asarray(self._action, np.float32), out.obs)
        return out._replace(reward=reward, raw_reward=own, success=out.success if success is None else success)

    def get_state(self) -> State:
        """Return the environment's state and the observation that the next transition begins with."""
        return {"env": self._env.get_state(), "obs": np.frombuffer(self._obs.tobytes(), np.uint8)}

    def set_state(self, state: State) -> None:
        """Continue from what ``get_state`` returned."""
        self._env.set_state(state["env"])
        data, spec = np.asarray(state["obs"], np.uint8).tobytes(), self._env.spec
        self._obs = np.frombuffer(data, spec.obs_dtype).reshape(spec.obs_shape).copy()


class TaskRewardWrapper(TransitionRewardWrapper):
    """An environment whose reward, returns and success are those of one of its auxiliary tasks."""

    def __init__(self, env: Env, tasks: AuxiliaryTasks, name: str) -> None:
        column = task_index(name, tasks.names, "--schedule")

        def reward(obs: Array, action: Array, next_obs: Array) -> tuple[Array, Array]:
            step = obs, action, next_obs
            return tasks.task_rewards(*step)[:, column], tasks.task_successes(*step)[:, column]

        super().__init__(env, TransitionFunction(reward, f"task {name!r}"))

    def _judged(self, info: dict[str, Any], reward: float, success: float | None) -> dict[str, Any]:
        return {**info, "raw_reward": reward, "success": success}


class DeclaredTasksWrapper:
    """An environment that says which auxiliary tasks there are for it; all else is passed on."""

    def __init__(self, env: Env, tasks: AuxiliaryTasks) -> None:
        self._env = env
        self.spec: EnvSpec = dataclasses.replace(env.spec, tasks=tasks.names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)
