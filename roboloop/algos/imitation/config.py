"""Settings of what learns actions from a dataset: Decision Transformer and behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from roboloop.algos.learner.config import DatasetConfig
from roboloop.algos.limits import at_least_one, at_most, check_convs, has_layers
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class ImitationConfig(DatasetConfig):
    """What both have: how pictures are read."""

    conv_channels: tuple[int, ...] = (32, 64, 128)
    """Channels of the convolutions that read pictures."""
    conv_kernels: tuple[int, ...] = (8, 4, 3)
    """Their window sizes, in pixels."""
    conv_strides: tuple[int, ...] = (4, 2, 2)
    """Their strides, in pixels; where one divides the first window, pictures are read in blocks, which is faster."""
    conv_features: int = 512
    """Width of the layer that follows the convolutions."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        at_least_one(self, "conv_features")
        check_convs(self)


@dataclass(frozen=True)
class DTConfig(ImitationConfig):
    """Decision Transformer, arXiv:2106.01345: actions from what happened and the return that is to come."""

    name: Literal["dt"] = "dt"
    """Which algorithm this section configures."""
    context: int = 20
    """Steps that the transformer sees, of which each is three tokens: return to go, state and action."""
    width: int = 128
    """Numbers per token."""
    layers: int = 3
    """Blocks of attention and dense layers."""
    heads: int = 1
    """Parts into which attention splits a token."""
    dropout: float = 0.1
    """Fraction of numbers dropped while learning, in steps of 1/256."""
    max_timestep: int = 4096
    """Steps of an episode that have an embedding of their own, at most; later ones share the last."""
    batch_size: int = 64
    """Windows per update."""
    lr: float = 1e-4
    """AdamW step size after the warm-up."""
    warmup_updates: int = 1000
    """Updates over which the step size grows linearly from zero; the paper's 10 000 are a tenth of its training."""
    max_grad_norm: float = 0.25
    """Longest gradient; 0 is not limited."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        at_least_one(self, "width", "layers", "heads", "max_timestep")
        at_most(self, layers=1_000, max_timestep=10**7)
        super().check()
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {self.dropout}")
        if self.width % self.heads:
            raise ConfigError(f"width {self.width} does not split into {self.heads} equal heads")


@dataclass(frozen=True)
class BCConfig(ImitationConfig):
    """Behaviour cloning: the action of each step from its observation alone."""

    name: Literal["bc"] = "bc"
    """Which algorithm this section configures."""
    context: int = 1
    """Steps per window; all of them are learned from, each by itself."""
    net: Literal["plain", "heads"] = "plain"
    """'plain' = one network; 'heads' = ``hidden`` layers that all tasks share, those of a set or an environment's
    auxiliary ones, then layers of each task's own. A batch then has as many windows of each."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    head_hidden: tuple[int, ...] = (256,)
    """With net 'heads': widths of the hidden layers of each head; may be empty."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        has_layers(self, "hidden")
        if self.head_hidden:
            has_layers(self, "head_hidden")


def _has_heads(config: Any) -> bool:
    return bool(config.net == "heads")


DECISION_TRANSFORMER = AlgorithmSpec(
    "dt", DTConfig, "dataset", "roboloop.algos.imitation.transformer:make",
    "roboloop.algos.imitation.transformer:load_policy", frame_stack=False,
)  # fmt: skip
CLONING = AlgorithmSpec(
    "bc", BCConfig, "dataset", "roboloop.algos.imitation.cloning:make",
    "roboloop.algos.imitation.cloning:load_policy", frame_stack=False, by_task=_has_heads,
)  # fmt: skip
