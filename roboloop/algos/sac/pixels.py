"""SAC from pictures: its losses over what convolutions see, which the critics train (docs/algorithms/pixel-sac.md)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Loss, Seen, Step
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.sac import SAC
from roboloop.core.errors import ConfigError
from roboloop.nets.conv import ConvNet, ConvSpec
from roboloop.nets.modules import Ensemble, make_net

PIXEL_SHIFT = 127.5
"""Bytes become numbers from -1/2 to 1/2."""


class Narrowed(nn.Module):
    """Rows ``[features | rest]``: Linear, LayerNorm and tanh narrow the features, a head sees ``[trunk | rest]``."""

    def __init__(self, features: int, width: int, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head
        self.trunk = nn.Sequential(nn.Linear(features, width), nn.LayerNorm(width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's outputs."""
        y: Tensor = self.head(self.narrow(x))
        return y

    def narrow(self, x: Tensor) -> Tensor:
        """Return the rows that the head sees."""
        return torch.cat((self.trunk(x[:, : self.features]), x[:, self.features :]), 1)


class PixelSAC(SAC):
    """SAC whose actor and critics see features of pictures, and the numbers beside them.

    One stack of convolutions per picture serves all networks. The critics' loss trains them; the actor learns from
    features as they were before that step, and the target critics look through the critics' convolutions.
    """

    acting = ("convs", "actor")
    takes = frozenset({"pictures"})
    cfg: SACConfig

    def build(self) -> None:
        """Make convolutions, then what sees through them."""
        cfg = self.cfg
        self.reads = tuple(
            ConvSpec(picture[1:], cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, 0, "relu")
            for picture in self.fields.pictures
        )
        self.shift_px = shift_of(cfg, self.reads, self.spec.protocol.get("pick") == "point")
        self.convs = nn.ModuleList(ConvNet(conv, PIXEL_SHIFT) for conv in self.reads)
        self.num_features = sum(conv.layers()[-1].size for conv in self.reads)
        super().build()

    def net(self, more: int, outputs: int) -> nn.Module:
        """Return a network over a trunk of its own."""
        return self.narrowed(make_net(self.cfg, self.cfg.feature_dim + self.obs_dim + more, outputs))

    def make_critics(self) -> nn.Module:
        """Return networks over a trunk that they share."""
        cfg, inputs = self.cfg, self.cfg.feature_dim + self.obs_dim + self.action_dim
        return self.narrowed(Ensemble(lambda: make_net(cfg, inputs, 1), cfg.num_critics))

    def narrowed(self, head: nn.Module) -> Narrowed:
        """Return a trunk under a head."""
        return Narrowed(self.num_features, self.cfg.feature_dim, head)

    def steps(self) -> tuple[Step, ...]:
        """Return SAC's; the critics' step moves the convolutions too."""
        critics, actor = super().steps()
        convs = Adam(self.cfg.critic_lr, max_grad_norm=self.cfg.max_grad_norm)
        return dataclasses.replace(critics, of={**critics.of, "convs": convs}), actor

    def kept(self) -> dict[str, tuple[int, ...]]:
        """Return what the actor's loss sees: the convolutions have moved by then."""
        return {"seen": (self.num_features + self.obs_dim,)}

    def see(self, obs: Rows) -> Tensor:
        """Return rows of all pictures' features and the vector."""
        features = [conv(getattr(obs, f"picture{i}")) for i, conv in enumerate(self.convs)]
        return torch.cat((*features, obs.vector), 1)

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's; nothing is learned from how the next state is seen."""
        seen = self.see(batch.obs)
        batch.seen.copy_(seen.detach())
        with torch.no_grad():
            next_seen = self.see(batch.next_obs)
        return super().critic_loss(Rows(**{**vars(batch), "obs": seen, "next_obs": next_seen}), noise)

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """SAC's, on features as the critics saw them."""
        return super().actor_loss(Rows(obs=batch.seen), noise)

    def act(self, obs: Seen, noise: Tensor | None) -> Tensor:
        """Return drawn actions, or tanh(mean)."""
        return super().act(self.see(obs), noise)


def shift_of(cfg: SACConfig, convs: tuple[ConvSpec, ...], picks_points: bool) -> int:
    """Return by how much sampled pictures are shifted."""
    for _, height, width in (conv.picture for conv in convs):
        if cfg.shift_px >= min(height, width):
            raise ConfigError(f"shift_px {cfg.shift_px} leaves nothing of pictures of {height}x{width}: try 4")
    if cfg.shift_px and picks_points:
        raise ConfigError("shift_px moves pictures and not the places picked in them: set it to 0")
    return cfg.shift_px
