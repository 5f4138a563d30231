"""What becomes of an observation before the network proper: features of its pictures, then its vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from roboloop.algos.imitation.config import ImitationConfig
from roboloop.algos.learner.inputs import Rows
from roboloop.nets.conv import ConvNet, ConvSpec
from roboloop.nets.observations import Fields


class StateEncoder(nn.Module):
    """From observations to states ``[N, width]``."""

    def __init__(self, cfg: ImitationConfig, fields: Fields) -> None:
        super().__init__()
        self.reads = tuple(
            ConvSpec(picture[1:], cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, cfg.conv_features, "elu")
            for picture in fields.pictures
        )
        self.convs = nn.ModuleList(map(ConvNet, self.reads))
        self.width = sum(spec.features for spec in self.reads) + fields.vector_dim

    def forward(self, obs: Any) -> Tensor:
        """Return features and vector side by side."""
        if not isinstance(obs, Rows):
            vector: Tensor = obs
            return vector
        features = [conv(getattr(obs, f"picture{i}")) for i, conv in enumerate(self.convs)]
        return torch.cat((*features, obs.vector), 1)


def mask_of(obs: Any) -> Tensor | None:
    """Return which choices are possible ``[N, choices]``; None = all."""
    return getattr(obs, "mask", None) if isinstance(obs, Rows) else None
