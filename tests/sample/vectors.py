"""Vector environments for tests: Gymnasium's own SyncVectorEnv in its three ways to reset, over a countable env."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorRewardWrapper
from gymnasium.vector.utils import batch_space
from outside.vec import Points


class Counter(gymnasium.Env[Any, Any]):
    """Shows its episode and its age; even episodes terminate, odd ones are truncated, all at lengths of their own."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.episode, self.age = -1, 0

    def _see(self) -> Any:
        return np.array([self.episode, self.age], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        is_over = self.age == length_of(self.episode)
        ended, cut = is_over and self.episode % 2 == 0, is_over and self.episode % 2 == 1
        return self._see(), float(self.age), ended, cut, {"success": is_over}


def length_of(episode: int) -> int:
    return 3 + episode * 7 % 5


def sync(mode: AutoresetMode, num_envs: int, max_episode_steps: int = 20) -> SyncVectorEnv:
    def make(column: int) -> Counter:
        env = Counter()
        env.episode += 2 * column  # so that columns end at different steps
        return env

    return SyncVectorEnv([partial(make, column) for column in range(num_envs)], autoreset_mode=mode)


class Brittle(Points):
    """Raises at its tenth step, in the first of its instances only or in all of them."""

    left: ClassVar[list[int]] = [1]

    def __init__(self, num_envs: int, max_episode_steps: int = 50) -> None:
        super().__init__(num_envs, max_episode_steps)
        self.steps = 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        if self.steps == 10 and self.left[0]:
            self.left[0] -= 1
            raise RuntimeError("the simulator fell over")
        return super().step(actions)


class Watched(Points):
    """Sees a picture beside its numbers, which are NaN in the tenth step of its first instance."""

    bad: ClassVar[list[int]] = [0]

    def __init__(self, num_envs: int, max_episode_steps: int = 50) -> None:
        super().__init__(num_envs, max_episode_steps)
        self.single_observation_space = spaces.Dict({
            "eye": spaces.Box(0, 255, (36, 36, 3), np.uint8), "numbers": spaces.Box(-np.inf, np.inf, (6,), np.float32),
        })  # fmt: skip
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def _see(self) -> Any:
        numbers = super()._see()
        if self.clock[0] == 10 and self.bad[0]:
            self.bad[0] -= 1
            numbers[0, 0] = np.nan
        return {"eye": np.full((self.num_envs, 36, 36, 3), self.clock[0], np.uint8), "numbers": numbers}


class Staggered(Points):
    """Begins its first episodes at ages of their own, as simulators do whose columns shall not end together."""

    def __init__(self, num_envs: int, max_episode_steps: int = 50, lightness: float = 1.0) -> None:
        super().__init__(num_envs, max_episode_steps)
        self.lightness = lightness

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.clock[self.clock == 0] = 7
        return self._see(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return super().step(self.lightness * actions)


class FourValues(Points):
    """Has no info."""

    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class Wordy(Points):
    """Says in words that it succeeded."""

    def step(self, actions: Any) -> Any:
        *out, _ = super().step(actions)
        return *out, {"success": "yes"}


class Halved(VectorRewardWrapper):
    """A vector wrapper."""

    def rewards(self, reward: Any) -> Any:
        return reward / 2


class Forgetful(Points):
    """Cannot save its state."""

    get_state = set_state = None  # type: ignore[assignment]


class Unclocked(Points):
    """Leaves the length of episodes to others."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, 10**9)


class SaysNothing(Points):
    """Does not say how it resets."""

    metadata: ClassVar[dict[str, Any]] = {}


class WithoutFinals(Points):
    """Says that it resets in the same step, and gives no last observations."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}


MODES = {"disabled": AutoresetMode.DISABLED, "same": AutoresetMode.SAME_STEP, "next": AutoresetMode.NEXT_STEP}
for name, mode in MODES.items():
    gymnasium.register(f"Counter-{name}-v0", vector_entry_point=partial(sync, mode), max_episode_steps=20)
gymnasium.register("Unclocked-v0", vector_entry_point=Unclocked)
for kind in (Brittle, Watched, Staggered, FourValues, Wordy, Forgetful, SaysNothing, WithoutFinals):
    gymnasium.register(f"{kind.__name__}-v0", vector_entry_point=kind, max_episode_steps=20)
gymnasium.register("Unlimited-v0", vector_entry_point=partial(sync, AutoresetMode.SAME_STEP))
