"""Step sizes: constant, falling with progress, or holding the divergence of an update; the maths never asks which."""

from __future__ import annotations

from typing import Protocol

from roboloop.algos.learner.config import RolloutConfig
from roboloop.core.types import State

KL_FACTOR = 1.5
"""Factor of one change: a step size that is wrong by ten is right after six updates."""
LEAST_LR, MOST_LR = 1e-6, 1e-2


class LearningRate(Protocol):
    """Says the step size, and learns from how far an update has moved the policy."""

    def at(self, progress: float) -> float:
        """Return the step size when this fraction of training is done."""
        ...

    def after_update(self, approx_kl: float) -> None:
        """Take note of the divergence from the acting policy that was seen in the last pass."""
        ...

    def state(self) -> State:
        """Return everything the next step depends on."""
        ...

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        ...


class Scheduled:
    """A function of progress alone."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = first, last

    def at(self, progress: float) -> float:
        """Return the point on the line from first to last."""
        return self._first + (self._last - self._first) * min(max(progress, 0.0), 1.0)

    def after_update(self, approx_kl: float) -> None:
        """Do nothing."""

    def state(self) -> State:
        """Return nothing: the runner says the progress."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class HoldKL:
    """Shorter steps where the policy moved twice as far as wanted, longer ones where not half as far."""

    def __init__(self, lr: float, target_kl: float) -> None:
        self._lr, self._target_kl = lr, target_kl

    def at(self, progress: float) -> float:
        """Return the present step size."""
        return self._lr

    def after_update(self, approx_kl: float) -> None:
        """Change the step size by a fixed factor, within bounds."""
        if approx_kl > 2.0 * self._target_kl:
            self._lr = max(self._lr / KL_FACTOR, LEAST_LR)
        elif approx_kl < 0.5 * self._target_kl:
            self._lr = min(self._lr * KL_FACTOR, MOST_LR)

    def state(self) -> State:
        """Return the step size."""
        return {"lr": self._lr}

    def load(self, state: State) -> None:
        """Restore the step size."""
        self._lr = float(state["lr"])


def make_learning_rate(cfg: RolloutConfig) -> LearningRate:
    """Return the schedule that the config asks for."""
    if cfg.lr_schedule == "kl":
        return HoldKL(cfg.lr, cfg.target_kl)
    return Scheduled(cfg.lr, 0.0 if cfg.lr_schedule == "linear" else cfg.lr)
