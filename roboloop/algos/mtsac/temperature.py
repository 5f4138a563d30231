"""The weight of entropy: learned or fixed, and the maths never asks which."""

from __future__ import annotations

import math
from typing import Protocol

from roboloop.algos.mtsac.losses import temperature_gradient
from roboloop.core.types import State


class Temperature(Protocol):
    """Gives alpha and follows the entropy that the policy shows."""

    @property
    def alpha(self) -> float:
        """The weight of entropy in the objective."""
        ...

    def update(self, entropy: float) -> None:
        """Take one step on the mean entropy of a batch."""
        ...

    def state(self) -> State:
        """Return everything the next step depends on."""
        ...

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        ...


class FixedTemperature:
    """A constant temperature."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def update(self, entropy: float) -> None:
        """Do nothing."""

    def state(self) -> State:
        """Return nothing: the config holds the constant."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class LearnedTemperature:
    """Holds the policy's entropy at a target by Adam steps on log alpha (section 5 of arXiv:1812.05905)."""

    BETA1, BETA2, EPS = 0.9, 0.999, 1e-8

    def __init__(self, initial_alpha: float, target_entropy: float, lr: float) -> None:
        self._target_entropy, self._lr = target_entropy, lr
        self._log_alpha, self._m, self._v, self._step = math.log(initial_alpha), 0.0, 0.0, 0

    @property
    def alpha(self) -> float:
        """The weight of entropy in the objective."""
        return math.exp(self._log_alpha)

    def update(self, entropy: float) -> None:
        """Take one Adam step, in double precision since it is a single number."""
        grad = temperature_gradient(entropy, self._target_entropy)
        self._step += 1
        self._m += (1 - self.BETA1) * (grad - self._m)
        self._v += (1 - self.BETA2) * (grad * grad - self._v)
        m_hat = self._m / (1 - self.BETA1**self._step)
        v_hat = self._v / (1 - self.BETA2**self._step)
        self._log_alpha -= self._lr * m_hat / (math.sqrt(v_hat) + self.EPS)

    def state(self) -> State:
        """Return log alpha and its Adam state."""
        return {"log_alpha": self._log_alpha, "m": self._m, "v": self._v, "step": self._step}

    def load(self, state: State) -> None:
        """Restore log alpha and its Adam state."""
        self._log_alpha, self._m, self._v = float(state["log_alpha"]), float(state["m"]), float(state["v"])
        self._step = int(state["step"])
