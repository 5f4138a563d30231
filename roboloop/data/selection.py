"""Which episodes are offered to the recorder, decided from counts and returns alone: the same in every repetition."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import State
from roboloop.data.config import RecordConfig


class Selection:
    """Chooses an episode when it begins; who is slow or full later has no say in it."""

    def __init__(self, cfg: RecordConfig, num_envs: int, seed: int) -> None:
        self._every = cfg.every
        self._in_turns = cfg.select == "one_per_iteration"
        count = cfg.streams or num_envs
        self._streams = set((np.arange(count) * num_envs // count).tolist())
        self._turns: list[int] = stream(seed, "record", num_envs).permutation(sorted(self._streams)).tolist()
        self._turn = 0
        self._begun = np.zeros(num_envs, np.int64)  # episodes per environment
        self.is_chosen = np.zeros(num_envs, bool)
        """Whether the running episode of each environment is one to record."""

    def begin(self, env: int) -> bool:
        """Choose or leave out the episode that begins in an environment, where another may have ended."""
        if self._in_turns:
            self._turn += int(self.is_chosen[env])  # its turn is over
            chosen = env == self._turns[self._turn % len(self._turns)]
        else:
            # shifted by the environment, so that not all of them are recorded at the same time
            chosen = env in self._streams and (int(self._begun[env]) - env) % self._every == 0
        self._begun[env] += 1
        self.is_chosen[env] = chosen
        return chosen

    def state(self) -> State:
        """Return counts, turn and what is chosen now."""
        return {"turn": self._turn, "begun": self._begun.tolist(), "is_chosen": self.is_chosen.tolist()}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._turn = int(state["turn"])
        self._begun[:] = state["begun"]
        self.is_chosen[:] = state["is_chosen"]


class ExpertBar:
    """The return that makes an episode expert at the time when it ends."""

    def __init__(self, cfg: RecordConfig) -> None:
        self._by, self._at = cfg.expert_by, cfg.expert_at
        self._last: deque[float] = deque(maxlen=cfg.expert_window)
        self._best_eval: float | None = None

    @property
    def height(self) -> float:
        """The return to reach; infinite while it is not known."""
        if self._by == "return":
            return self._at
        if self._by == "best_eval":
            best = self._best_eval
            return (
                math.inf if best is None else best - (1 - self._at) * abs(best)
            )  # below it, also where it is negative
        if len(self._last) < (self._last.maxlen or 0):
            return math.inf
        return sorted(self._last)[math.ceil(self._at * (len(self._last) - 1))]

    def passes(self, episode_return: float) -> bool:
        """Say whether an episode is expert, by those before it, and remember it for those after it."""
        passed = episode_return >= self.height
        self._last.append(episode_return)
        return passed

    def saw_evaluation(self, episode_return: float) -> None:
        """Remember the best evaluation."""
        self._best_eval = episode_return if self._best_eval is None else max(self._best_eval, episode_return)

    def state(self) -> State:
        """Return the returns that it remembers."""
        return {"last": list(self._last), "best_eval": self._best_eval}

    def load(self, state: State) -> None:
        """Restore the returns."""
        self._last.clear()
        self._last.extend(map(float, state["last"]))
        best = state["best_eval"]
        self._best_eval = None if best is None else float(best)
