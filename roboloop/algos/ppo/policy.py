"""The policy that PPO learns: any mix of choices and continuous actions, pictures, vectors and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.flat_policy import FlatPolicy
from roboloop.algos.ppo.config import PPOConfig
from roboloop.core.config import override, to_dict
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec
from roboloop.nets.actions import ActionHead
from roboloop.nets.actor_critic import ActorCritic, ActorCriticSpec, Inputs, Window
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Layout
from roboloop.nets.normalize import scaled
from roboloop.nets.observations import Fields, action_mask

PIXEL_MAX = 255.0
MAX_NETS = 4
"""Numbers of rows for which a policy keeps a network ready: acting together, and alone at an episode's end."""


@dataclass(frozen=True)
class PPOModel:
    """What every process must know to build the same networks."""

    cfg: PPOConfig
    spec: EnvSpec
    frames: int

    def to_data(self) -> dict[str, Any]:
        """Return the model as plain data."""
        return {"cfg": self.cfg_data, "spec": spec_to_data(self.spec), "frames": self.frames}

    @property
    def cfg_data(self) -> dict[str, Any]:
        """The config without resources: nothing that is saved depends on them."""
        return {name: value for name, value in to_dict(self.cfg).items() if name != "processes"}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> PPOModel:
        """Return the model that ``to_data`` described."""
        return cls(override(PPOConfig(), data["cfg"]), spec_from_data(data["spec"]), data["frames"])

    @cached_property
    def fields(self) -> Fields:
        """How observations fall into parts."""
        return Fields.of(self.spec, self.frames)

    @cached_property
    def head(self) -> ActionHead:
        """The distribution over actions."""
        return ActionHead(self.spec.action_choices or (0,) * self.spec.action_dim)

    @cached_property
    def net(self) -> ActorCriticSpec:
        """The network."""
        cfg, head, fields = self.cfg, self.head, self.fields
        activation = cfg.activation or ("elu" if fields.pictures else "tanh")
        convs = tuple(
            ConvSpec(picture[1:], cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, cfg.conv_features, activation)
            for picture in fields.pictures
        )
        return ActorCriticSpec(
            fields.vector_dim, convs, cfg.hidden, activation, cfg.core, cfg.core_size, cfg.shared_trunk,
            head.num_logits, head.num_continuous, cfg.state_dependent_std, cfg.initial_std,
        )  # fmt: skip

    @cached_property
    def net_layout(self) -> Layout:
        """The network's parameters: what is learned by gradients."""
        return Layout(self.net.shapes())

    @cached_property
    def layout(self) -> Layout:
        """All that acting depends on: the network, and shift and scale of observations and values."""
        shapes: dict[str, tuple[int, ...]] = {"net": (self.net_layout.size,), "return_norm": (2,)}
        shapes["vector_norm"] = (2, self.fields.vector_dim if self.cfg.normalize_obs else 0)
        for i, picture in enumerate(self.fields.pictures):
            shapes[f"pixel_norm{i}"] = (2, picture.channels)
        return Layout(shapes)

    def initialise(self, flat: Tensor, rng: np.random.Generator) -> None:
        """Fill with the first weights, and norms that change nothing but the range of pixels."""
        views = self.layout.views(flat)
        self.net.initialise(self.net_layout.views(views["net"]), rng)
        for name, view in views.items():
            if name.endswith("norm") or name.startswith("pixel_norm"):
                view[0], view[1] = 0.0, 1.0 / PIXEL_MAX if name.startswith("pixel") else 1.0

    def vector(self, obs: Array, rows: int, norm: Array) -> Array:
        """Return the vector ``[rows, D]`` of observations, scaled by shift and scale ``[2, D]`` where there are any."""
        vector = self.fields.vector(obs, rows)
        return scaled(vector, *norm) if norm.size else vector

    def write_blocks(self, obs: Array, rows: int, number: int, out: Array) -> None:
        """Write one picture field as blocks ``[rows, block_bytes]``."""
        self.net.convs[number].to_blocks(self.fields.pixels(obs, rows, self.fields.pictures[number]), out)


class PPOPolicy(FlatPolicy[PPOModel]):
    """Acts by weights that a trainer may go on changing, and says what its actions are worth."""

    model_type = PPOModel

    def __init__(self, model: PPOModel, flat: Tensor) -> None:
        super().__init__(model, flat)
        self.memory_size = model.net.memory_size
        self._value_mean, self._value_std = self._views["return_norm"]
        self._nets: dict[int, tuple[ActorCritic, Tensor]] = {}

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide for observations ``[B, ...]``; not exploring takes the likeliest action and draws nothing."""
        rows, head = len(obs), self._model.head
        (net, starts), mask_array = self._net(rows), action_mask(obs, rows)
        mask = None if mask_array is None else self._tensor(mask_array)
        params, value = net.forward(self._inputs(obs, rows), self._tensor(memory), starts)
        noise = self._tensor(head.noise(rng, rows)) if explore else None
        unit = head.mode(params, mask) if noise is None else head.sample(params, noise, mask)
        action = self._scale.to_env_unbounded(unit.cpu().numpy())
        # of the action as it is stored, rounded to the environment's units and back: what learning will see
        log_prob = head.log_prob(params, self._tensor(self._scale.to_unit(action)), mask)
        value = torch.addcmul(self._value_mean, value, self._value_std)
        after = net.memory.clone().cpu().numpy() if self.memory_size else memory
        return Decision(action, after, log_prob.cpu().numpy(), value.cpu().numpy())

    @property
    def has_std(self) -> bool:
        """Whether any of its actions are continuous."""
        return self._model.net.num_continuous > 0

    def with_std(self, std: float) -> Self:
        """Return a snapshot whose deviation of continuous actions is this one in all states."""
        policy = self.snapshot()
        log_std = policy._model.net.log_std_of(policy._weights)
        for weight in log_std.weights:
            weight.zero_()
        log_std.bias.fill_(math.log(std))
        return policy

    def _inputs(self, obs: Array, rows: int) -> Inputs:
        model = self._model
        vector = model.vector(obs, rows, self.norm("vector_norm"))
        pictures = []
        for i, conv in enumerate(model.net.convs):
            blocks = np.empty((rows, conv.block_bytes), np.uint8)
            model.write_blocks(obs, rows, i, blocks)
            pictures.append(self._tensor(blocks))
        return Inputs(self._tensor(vector), tuple(pictures))

    def _net(self, rows: int) -> tuple[ActorCritic, Tensor]:
        """Return the network for so many rows, and that none begins an episode: the caller has cleared its memory."""
        if rows not in self._nets:
            if len(self._nets) == MAX_NETS:
                self._nets.clear()
            pixel_norms = [self._views[f"pixel_norm{i}"] for i in range(len(self._model.net.convs))]
            net = self._model.net.build(self._weights, None, pixel_norms, Window(1, rows))
            self._nets[rows] = net, torch.zeros(1, rows, device=self._flat.device)
        return self._nets[rows]
