"""Networks that say both what to do and what it is worth: from observations to parameters of actions and a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from roboloop.nets.actions import ActionHead
from roboloop.nets.conv import ConvNet, ConvSpec
from roboloop.nets.modules import ACTIVATIONS, mlp, own_net
from roboloop.nets.observations import Fields
from roboloop.nets.orthogonal import HIDDEN_GAINS, POLICY_GAIN, VALUE_GAIN, orthogonal
from roboloop.nets.recurrent import CORES


class Said(NamedTuple):
    """What a network says of windows ``[T, B]``; rows lie as ``t * B + b``."""

    params: Tensor  # [T * B, P], of the actions' distribution
    value: Tensor  # [T * B]
    memory: Tensor  # [B, memory_size] after the last step


def activation_of(cfg: Any, fields: Fields) -> str:
    """Return what stands between layers."""
    name: str = cfg.activation or ("elu" if fields.pictures else "tanh")
    return name


def conv_specs(cfg: Any, fields: Fields) -> list[ConvSpec]:
    """Return the convolutions of each picture."""
    sizes = cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, cfg.conv_features
    return [ConvSpec(picture[1:], *sizes, activation_of(cfg, fields)) for picture in fields.pictures]


def plain(cfg: Any, inputs: int, activation: str) -> nn.Module:
    """Return the layers of widths ``hidden``."""
    net = mlp((inputs, *cfg.hidden), activation)
    for layer in net:
        if isinstance(layer, nn.Linear):
            orthogonal(layer, HIDDEN_GAINS[activation])
    return net


class Trunk(nn.Module):
    """From the parts of observations to features: encoders of pictures and vector, and a core where wanted."""

    def __init__(self, cfg: Any, fields: Fields, reads: Sequence[ConvSpec]) -> None:
        super().__init__()
        activation = activation_of(cfg, fields)
        self.pictures = nn.ModuleList(map(ConvNet, reads))
        self.size = sum(spec.features for spec in reads)
        self.vector: nn.Module | None = None
        if fields.vector_dim:
            self.vector = nn.Sequential(
                own_net(cfg, fields.vector_dim, cfg.hidden[-1]) or plain(cfg, fields.vector_dim, activation),
                ACTIVATIONS[activation](),
            )
            self.size += cfg.hidden[-1]
        self.core = CORES[cfg.core](self.size, cfg.core_size) if cfg.core != "none" else None
        if self.core is not None:
            self.size = self.core.size

    def forward(
        self, vector: Tensor, pictures: Sequence[Tensor], memory: Tensor, starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return features ``[T * B, size]`` and memory."""
        features = [net(x.flatten(0, 1)) for net, x in zip(self.pictures, pictures, strict=True)]
        if self.vector is not None:
            features.append(self.vector(vector.flatten(0, 1)))
        x = features[0] if len(features) == 1 else torch.cat(features, 1)
        if self.core is None:
            return x, memory
        y, memory = self.core(x.view(*vector.shape[:2], -1), memory, starts)
        return y.flatten(0, 1), memory


class ActorCritic(nn.Module):
    """Policy and value, each with a trunk of its own, or with one for both where there are pictures or a core."""

    def __init__(self, cfg: Any, fields: Fields, reads: Sequence[ConvSpec], head: ActionHead) -> None:
        super().__init__()
        is_shared = cfg.shared_trunk or bool(reads) or cfg.core != "none"
        self.trunks = nn.ModuleList(Trunk(cfg, fields, reads) for _ in range(1 if is_shared else 2))
        size: int = self.actor.size
        self.num_continuous, self.num_logits = head.num_continuous, head.num_logits
        self.has_free_std = head.num_continuous > 0 and not cfg.state_dependent_std
        outputs = head.num_params - head.num_continuous * self.has_free_std
        self.policy = orthogonal(nn.Linear(size, outputs), POLICY_GAIN)
        self.value = orthogonal(nn.Linear(size, 1), VALUE_GAIN)
        if self.has_free_std:
            self.log_std = nn.Parameter(torch.zeros(head.num_continuous))
        if head.num_continuous:
            self.set_std(cfg.initial_std)

    @property
    def actor(self) -> Trunk:
        """What the policy reads."""
        trunk = self.trunks[0]
        assert isinstance(trunk, Trunk)
        return trunk

    @property
    def memory_size(self) -> int:
        """Floats of memory per environment."""
        return self.actor.core.memory_size if self.actor.core is not None else 0

    def forward(self, vector: Tensor, pictures: Sequence[Tensor], memory: Tensor, starts: Tensor | None) -> Said:
        """Say it of ``vector [T, B, D]`` and pictures ``[T, B, block_bytes]``; ``starts [T, B]`` clear the memory."""
        features = [trunk(vector, pictures, memory, starts) for trunk in self.trunks]
        (of_policy, after), (of_value, _) = features[0], features[-1]
        params = self.policy(of_policy)
        if self.has_free_std:
            params = torch.cat((params, self.log_std.expand(params.shape[0], -1)), 1)
        return Said(params, self.value(of_value).squeeze(1), after)

    @torch.no_grad()
    def set_std(self, std: float) -> None:
        """Give continuous actions this deviation in all states."""
        if self.has_free_std:
            self.log_std.fill_(math.log(std))
        else:
            self.policy.weight[-self.num_continuous :] = 0.0
            self.policy.bias[-self.num_continuous :] = math.log(std)
