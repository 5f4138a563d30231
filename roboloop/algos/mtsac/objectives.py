"""What critics learn from a shard's rows, and what their outputs are worth to the actor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from roboloop.algos.mtsac import example_losses
from roboloop.algos.mtsac.losses import TensorMetrics, critic_loss, critic_loss_gradient, td_target


@dataclass(frozen=True)
class ExampleTerms:
    """How a batch with examples of success in it is learned from; without any it is plain soft actor-critic's."""

    rows: int = 0
    """Examples among each task's rows in a shard, its first ones. Critics judge fresh actions there; actors learn
    nothing from them."""
    loss: Literal["bellman", "classifier"] = "bellman"
    penalty: float = 0.0
    """Weight of values that no value can be."""


NO_EXAMPLES = ExampleTerms()


class Objective(Protocol):
    """A loss of critics, and the way from their outputs to values."""

    def critic(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float | Tensor
    ) -> tuple[Tensor, TensorMetrics]:
        """Return the gradient of the loss by the outputs ``q [E, N]``, and what there is to say of it."""
        ...

    def values(self, q: Tensor) -> Tensor:
        """Return the values that outputs stand for."""
        ...

    def vjp(self, values: Tensor, d_values: Tensor) -> Tensor:
        """Return the gradient by outputs of what has a gradient by their values."""
        ...


class SoftBellman:
    """Soft actor-critic's own; outputs are values."""

    def __init__(self, reward: Tensor, discount: Tensor, batch_size: int) -> None:
        self._reward, self._discount, self._batch_size = reward, discount, batch_size

    def critic(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float | Tensor
    ) -> tuple[Tensor, TensorMetrics]:
        """Return the gradient of the Bellman error."""
        target = td_target(self._reward, self._discount, next_q, next_log_prob, alpha)
        gradient = critic_loss_gradient(q, target, self._batch_size)
        return gradient, critic_loss(q, target, self._batch_size)[1]

    def values(self, q: Tensor) -> Tensor:
        """Return them as they are."""
        return q

    def vjp(self, values: Tensor, d_values: Tensor) -> Tensor:
        """Return it as it is."""
        return d_values


class Bounded(SoftBellman):
    """The same with values held to what they can be: examples up to ``top``, other rows up to their task's cap.

    No state can be worth more than success for ever, nor, as far as the critic knows, than the examples themselves.
    """

    def __init__(
        self,
        reward: Tensor,
        discount: Tensor,
        batch_size: int,
        is_example: Tensor,
        cap: Tensor,
        top: float,
        penalty: float,
    ) -> None:
        super().__init__(reward, discount, batch_size)
        self._is_example, self._cap, self._top, self._penalty = is_example, cap, top, penalty

    def critic(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float | Tensor
    ) -> tuple[Tensor, TensorMetrics]:
        """Return the gradient of Bellman error and penalty."""
        gradient, metrics = super().critic(q, next_q, next_log_prob, alpha)
        high = self._cap.repeat_interleave(len(self._is_example) // len(self._cap))
        bounds = -self._top, torch.where(self._is_example, self._top, high)
        gradient += example_losses.value_penalty_gradient(q, *bounds, self._penalty, self._batch_size)
        penalty = example_losses.value_penalty(q, *bounds, self._penalty, self._batch_size)
        return gradient, {**metrics, "value_penalty": penalty}


class Classifier:
    """Outputs are logits of 'success will come'; rewards and entropy do not count (recursive classification)."""

    def __init__(self, discount: Tensor, batch_size: int, is_example: Tensor, gamma: float) -> None:
        self._discount, self._batch_size, self._is_example, self._gamma = discount, batch_size, is_example, gamma

    def critic(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor, alpha: float | Tensor
    ) -> tuple[Tensor, TensorMetrics]:
        """Return the gradient of the weighted cross-entropy."""
        odds = example_losses.success_odds(next_q, self._discount)
        terms = odds, self._is_example, self._gamma, self._batch_size
        loss = example_losses.classifier_loss(q, *terms)
        chance = q.sigmoid().sum() / (q.shape[0] * self._batch_size)
        return example_losses.classifier_loss_gradient(q, *terms), {"critic_loss": loss, "q_mean": chance}

    def values(self, q: Tensor) -> Tensor:
        """Return probabilities."""
        return q.sigmoid()

    def vjp(self, values: Tensor, d_values: Tensor) -> Tensor:
        """Return it through the slope of the sigmoid."""
        return d_values * (values * (1.0 - values))
