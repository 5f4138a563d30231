"""State for simulators that cannot save theirs: the episode's seed and actions, run again on restore."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from roboloop.core.types import Array, State
from roboloop.envs.env import Outcome


class ReplayWorld(ABC):
    """A world restored by replay; correct whenever a seed and its actions determine the episode."""

    def __init__(self, action_dim: int) -> None:
        self._action_dim = action_dim
        self._seed: int | None = None
        self._actions: list[Array] = []
        self._repeats: list[int] = []

    @abstractmethod
    def start(self, seed: int) -> Array:
        """Start the simulator's episode."""

    @abstractmethod
    def advance(self, action: Array, repeat: int) -> Outcome:
        """Hold an action in the simulator for up to ``repeat`` control steps."""

    @abstractmethod
    def render(self) -> Array:
        """Return the current picture."""

    @abstractmethod
    def close(self) -> None:
        """Release what the simulator holds."""

    def reset(self, seed: int) -> Array:
        """Start the episode and forget the last one."""
        self._seed, self._actions, self._repeats = int(seed), [], []
        return self.start(seed)

    def step(self, action: Array, repeat: int) -> Outcome:
        """Advance and remember the action."""
        self._actions.append(action.copy())  # some simulators write into their actions
        self._repeats.append(repeat)
        return self.advance(action, repeat)

    def get_state(self) -> State:
        """Return the seed and the actions so far, each with the steps it was held for."""
        actions = np.array(self._actions, np.float32).reshape(-1, self._action_dim)
        return {"seed": self._seed, "actions": actions, "repeats": np.array(self._repeats, np.int32)}

    def set_state(self, state: State) -> None:
        """Run the episode again up to the saved moment."""
        self._seed, self._actions = state["seed"], list(np.asarray(state["actions"], np.float32))
        # older checkpoints hold one action per simulator step
        self._repeats = [int(n) for n in state.get("repeats", np.ones(len(self._actions)))]
        if self._seed is None:
            return
        self.start(int(self._seed))
        for action, repeat in zip(self._actions, self._repeats, strict=True):
            self.advance(action, repeat)
