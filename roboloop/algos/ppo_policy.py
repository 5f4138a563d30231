"""The policy that PPO learns: any mix of choices and continuous actions, pictures, vectors and memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.config import PPOConfig
from roboloop.algos.policy import ActionScale, kind_of
from roboloop.core.config import override, to_dict
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, State
from roboloop.nets.actions import ActionHead
from roboloop.nets.actor_critic import ActorCritic, ActorCriticSpec, Inputs, Window
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Layout, clone
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


class PPOPolicy:
    """Acts by weights that a trainer may go on changing, and says what its actions are worth."""

    def __init__(self, model: PPOModel, flat: Tensor) -> None:
        self.version = 0
        self.memory_size = model.net.memory_size
        self._model, self._flat = model, flat
        self._views = model.layout.views(flat)
        self._scale = ActionScale(model.spec)
        self._nets: dict[int, ActorCritic] = {}

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide for observations ``[B, ...]``; not exploring takes the likeliest action and draws nothing."""
        rows, head = len(obs), self._model.head
        net, mask_array = self._net(rows), action_mask(obs, rows)
        mask = None if mask_array is None else self._tensor(mask_array)
        starts = torch.zeros(1, rows, device=self._flat.device)  # the caller has cleared the memory already
        params, value = net.forward(self._inputs(obs, rows), self._tensor(memory), starts)
        noise = self._tensor(head.noise(rng, rows)) if explore else None
        unit = head.mode(params, mask) if noise is None else head.sample(params, noise, mask)
        action = self._scale.to_env_unbounded(unit.cpu().numpy())
        # of the action as it is stored, rounded to the environment's units and back: what learning will see
        log_prob = head.log_prob(params, self._tensor(self._scale.to_unit(action)), mask)
        mean, std = self._views["return_norm"]
        after = net.memory.clone().cpu().numpy() if self.memory_size else memory
        return Decision(action, after, log_prob.cpu().numpy(), (value * std + mean).cpu().numpy())

    def _inputs(self, obs: Array, rows: int) -> Inputs:
        model = self._model
        vector = model.vector(obs, rows, self._views["vector_norm"].cpu().numpy())
        pictures = []
        for i, conv in enumerate(model.net.convs):
            blocks = np.empty((rows, conv.block_bytes), np.uint8)
            model.write_blocks(obs, rows, i, blocks)
            pictures.append(self._tensor(blocks))
        return Inputs(self._tensor(vector), tuple(pictures))

    def _net(self, rows: int) -> ActorCritic:
        if rows not in self._nets:
            if len(self._nets) == MAX_NETS:
                self._nets.clear()
            weights = self._model.net_layout.views(self._views["net"])
            pixel_norms = [self._views[f"pixel_norm{i}"] for i in range(len(self._model.net.convs))]
            self._nets[rows] = self._model.net.build(weights, None, pixel_norms, Window(1, rows))
        return self._nets[rows]

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._flat.device)

    def snapshot(self) -> PPOPolicy:
        """Return a policy that no later update changes."""
        policy = PPOPolicy(self._model, self._flat.clone())
        policy.version = self.version
        return policy

    def state(self) -> State:
        """Return all that acting needs, as copies."""
        norms = {name: view.clone() for name, view in self._views.items() if name != "net"}
        return {
            "net": clone(self._model.net_layout.views(self._views["net"])),
            "norms": norms,
            "cfg": self._model.cfg_data,
            "frames": self._model.frames,
        }

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), **self._model.to_data()}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> PPOPolicy:
        """Build the same policy anew, with weights still to be read."""
        model = PPOModel.from_data(data)
        return cls(model, model.layout.zeros())

    @property
    def num_weights(self) -> int:
        """Length of the flat weights."""
        return self._model.layout.size

    def write_weights(self, out: Array) -> None:
        """Write networks and norms: they lie side by side already."""
        torch.from_numpy(out).copy_(self._flat)

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        self._flat.copy_(torch.from_numpy(flat))
        self.version = version


def policy_from_state(state: State, spec: EnvSpec) -> PPOPolicy:
    """Build a policy from the ``policy`` entry of a saved state and the environment's spec alone."""
    model = PPOModel(override(PPOConfig(), state["cfg"]), spec, int(state["frames"]))
    flat = model.layout.zeros()
    views = model.layout.views(flat)
    for name, view in model.net_layout.views(views["net"]).items():
        view.copy_(torch.as_tensor(state["net"][name]))
    for name, norm in state["norms"].items():
        views[name].copy_(torch.as_tensor(norm))
    return PPOPolicy(model, flat)
