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

    @abstractmethod
    def start(self, seed: int) -> Array:
        """Start the simulator's episode."""

    @abstractmethod
    def advance(self, action: Array) -> Outcome:
        """Advance the simulator by one control step."""

    @abstractmethod
    def render(self) -> Array:
        """Return the current picture."""

    @abstractmethod
    def close(self) -> None:
        """Release what the simulator holds."""

    def reset(self, seed: int) -> Array:
        """Start the episode and forget the last one."""
        self._seed, self._actions = int(seed), []
        return self.start(seed)

    def step(self, action: Array) -> Outcome:
        """Advance and remember the action."""
        self._actions.append(action)
        return self.advance(action)

    def get_state(self) -> State:
        """Return the seed and the actions so far."""
        actions = np.array(self._actions, np.float32).reshape(-1, self._action_dim)
        return {"seed": self._seed, "actions": actions}

    def set_state(self, state: State) -> None:
        """Run the episode again up to the saved moment."""
        self._seed, self._actions = state["seed"], list(np.asarray(state["actions"], np.float32))
        if self._seed is None:
            return
        self.start(int(self._seed))
        for action in self._actions:
            self.advance(action)
