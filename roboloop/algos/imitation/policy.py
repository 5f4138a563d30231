"""The policy that imitation learns, with or without memory, and what every process must know to build it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.flat_policy import FlatPolicy
from roboloop.algos.imitation.config import BCConfig, DTConfig
from roboloop.algos.spec import Setup
from roboloop.core.config import override, to_dict
from roboloop.core.errors import DataError, nearest
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, State
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import Layout, Views
from roboloop.nets.mlp import MLPSpec
from roboloop.nets.normalize import scaled
from roboloop.nets.observations import Fields, action_mask
from roboloop.nets.stepwise import StepwiseSpec
from roboloop.nets.targets import TargetHead
from roboloop.nets.transformer import TransformerSpec
from roboloop.nets.windows import StateEncoder, StateSpec, WindowNetSpec

PIXEL_MAX = 255.0
LEAST_STD = 1e-6
"""Observations that vary less than this are taken for constants, and left in their own unit."""
LEAST_RETURN = 1e-3
KINDS: dict[str, type[DTConfig] | type[BCConfig]] = {"dt": DTConfig, "bc": BCConfig}
MAX_ENCODERS = 4
"""Numbers of rows for which a policy keeps an encoder ready."""


class DataScale(NamedTuple):
    """The scales of a dataset: what is learned, and acted upon, is measured in them."""

    obs_mean: Array
    """``[D]`` of all vector fields of an observation side by side; pictures are not counted."""
    obs_std: Array
    return_scale: float
    """Returns to go are divided by this."""


def return_scale_of(returns: Array) -> float:
    """Return a scale that brings a dataset's episode returns to about one: the 99th percentile, whatever its sign."""
    return max(abs(float(np.percentile(returns, 99))), LEAST_RETURN)


@dataclass(frozen=True)
class ImitationModel:
    """What every process must know to build the same networks."""

    cfg: DTConfig | BCConfig
    spec: EnvSpec

    def to_data(self) -> dict[str, Any]:
        """Return the model as plain data."""
        return {"cfg": self.cfg_data, "spec": spec_to_data(self.spec)}

    @property
    def cfg_data(self) -> dict[str, Any]:
        """The config without resources: nothing that is saved depends on them."""
        return {name: value for name, value in to_dict(self.cfg).items() if name != "processes"}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ImitationModel:
        """Return the model that ``to_data`` described."""
        return cls(config_of(data["cfg"]), spec_from_data(data["spec"]))

    @cached_property
    def fields(self) -> Fields:
        """How observations fall into parts."""
        return Fields.of(self.spec, frames=1)

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """Per action column the number of choices, 0 = continuous."""
        return self.spec.action_choices or (0,) * self.spec.action_dim

    @property
    def num_tasks(self) -> int:
        """Heads of the network, and parts of a batch of windows, one after another and equally large."""
        return len(self.spec.tasks) if isinstance(self.cfg, BCConfig) and self.cfg.net == "heads" else 1

    @cached_property
    def head(self) -> TargetHead:
        """How actions are read and written."""
        return TargetHead(self.choices)

    @cached_property
    def state(self) -> StateSpec:
        """What becomes of observations before the network proper."""
        cfg = self.cfg
        convs = tuple(
            ConvSpec(picture[1:], cfg.conv_channels, cfg.conv_kernels, cfg.conv_strides, cfg.conv_features, "elu")
            for picture in self.fields.pictures
        )
        return StateSpec(self.fields.vector_dim, convs)

    @property
    def times(self) -> int:
        """Steps of an episode that are told apart."""
        return min(self.spec.max_episode_steps, self.cfg.max_timestep) if isinstance(self.cfg, DTConfig) else 1

    @cached_property
    def net(self) -> WindowNetSpec:
        """The network proper."""
        cfg, state, width = self.cfg, self.state, self.head.width
        if isinstance(cfg, BCConfig):
            layers = (*cfg.hidden, *cfg.head_hidden) if self.num_tasks > 1 else cfg.hidden
            mlp = MLPSpec((state.width, *layers, width), groups=self.num_tasks, num_shared=len(cfg.hidden))
            return StepwiseSpec(mlp, state.num_features, cfg.context, bool(self.spec.own_tasks))
        return TransformerSpec(
            state.width, state.num_features, width, width, cfg.context, self.times, cfg.width, cfg.layers, cfg.heads,
            cfg.dropout,
        )  # fmt: skip

    @cached_property
    def net_layout(self) -> Layout:
        """All that is learned by gradients; names of the network proper and of the pictures' encoders differ."""
        return Layout(self.net.shapes() | self.state.shapes())

    @cached_property
    def layout(self) -> Layout:
        """All that acting depends on: the network, shift and scale of observations, scale and target of returns."""
        shapes: dict[str, tuple[int, ...]] = {"net": (self.net_layout.size,), "return_norm": (2,)}
        shapes["vector_norm"] = (2, self.fields.vector_dim)
        for i, picture in enumerate(self.fields.pictures):
            shapes[f"pixel_norm{i}"] = (2, picture.channels)
        return Layout(shapes)

    def of_net(self, views: Views) -> Views:
        """Return the views of the network proper, without those of the pictures' encoders."""
        return {name: views[name] for name in self.net.shapes()}

    def initialise(self, flat: Tensor, rng: np.random.Generator, scale: DataScale, target: float) -> None:
        """Fill with the first weights, and with the dataset's scales."""
        views = self.layout.views(flat)
        weights = self.net_layout.views(views["net"])
        self.net.initialise(self.of_net(weights), rng)
        self.state.initialise(weights, rng)
        mean, std = (np.asarray(a, np.float32).reshape(-1) for a in (scale.obs_mean, scale.obs_std))
        if not len(mean) == len(std) == self.fields.vector_dim:
            raise DataError(f"scales of {len(mean)} numbers do not fit observations of {self.fields.vector_dim}")
        views["vector_norm"][0] = torch.from_numpy(mean)
        views["vector_norm"][1] = torch.from_numpy(np.where(std > LEAST_STD, 1.0 / (std + LEAST_STD), np.float32(1.0)))
        views["return_norm"].copy_(torch.tensor([scale.return_scale, target]))
        for i in range(len(self.fields.pictures)):
            views[f"pixel_norm{i}"][0], views[f"pixel_norm{i}"][1] = 0.0, 1.0 / PIXEL_MAX

    def vector(self, obs: Array, rows: int, norm: Array) -> Array:
        """Return the normalised vector ``[rows, D]`` of observations."""
        return scaled(self.fields.vector(obs, rows), *norm)

    def write_blocks(self, obs: Array, rows: int, number: int, out: Array) -> None:
        """Write one picture field as blocks ``[rows, block_bytes]``."""
        self.state.convs[number].to_blocks(self.fields.pixels(obs, rows, self.fields.pictures[number]), out)


class ImitationPolicy(FlatPolicy[ImitationModel]):
    """Acts by weights that a trainer may go on changing; a transformer is told how much return to reach."""

    model_type = ImitationModel

    def __init__(self, model: ImitationModel, flat: Tensor) -> None:
        super().__init__(model, flat)
        self._actor = model.net.actor(model.of_net(self._weights), self._views["return_norm"])
        self.memory_size = self._actor.memory_size
        self._encoders: dict[int, StateEncoder] = {}

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Decide for observations ``[B, ...]``; not exploring takes the likeliest choices and draws nothing."""
        rows, head = len(obs), self._model.head
        mask_array = action_mask(obs, rows)
        mask = None if mask_array is None else self._tensor(mask_array)
        outputs, after = self._actor.step(self._states(obs, rows), memory)
        unit = head.choose(outputs, mask, rng if explore else None)
        self._actor.note_action(after, head.encode(unit).cpu().numpy())
        return Decision(self._scale.to_env(unit.cpu().numpy()), after)

    def observe_reward(self, memory: Array, reward: Array) -> Array:
        """Take note of the raw rewards ``[B]`` of the actions: less return is then to go."""
        return self._actor.note_reward(memory, reward)

    @property
    def follows_target(self) -> bool:
        """Whether it is told how much return to reach; cloning is not."""
        return self.memory_size > 0

    @property
    def target(self) -> float:
        """The return that an episode is to reach."""
        return float(self._views["return_norm"][1])

    def with_target(self, target: float) -> ImitationPolicy:
        """Return a copy that is to reach another return."""
        policy = self.snapshot()
        policy._views["return_norm"][1] = target
        return policy

    def _states(self, obs: Array, rows: int) -> Tensor:
        model = self._model
        vector = self._tensor(model.vector(obs, rows, self.norm("vector_norm")))
        pictures = []
        for i, conv in enumerate(model.state.convs):
            blocks = np.empty((rows, conv.block_bytes), np.uint8)
            model.write_blocks(obs, rows, i, blocks)
            pictures.append(self._tensor(blocks))
        return self._encoder(rows).forward(vector, pictures)

    def _encoder(self, rows: int) -> StateEncoder:
        if rows not in self._encoders:
            if len(self._encoders) == MAX_ENCODERS:
                self._encoders.clear()
            self._encoders[rows] = StateEncoder(self._model.state, self._weights, None, pixel_norms(self._views), rows)
        return self._encoders[rows]


def config_of(data: dict[str, Any]) -> DTConfig | BCConfig:
    """Return the config of the kind that ``data`` names."""
    if data["name"] not in KINDS:
        raise DataError(f"{data['name']!r} is no kind of imitation{nearest(str(data['name']), KINDS)}")
    return override(KINDS[data["name"]](), data)


def pixel_norms(views: Views) -> list[Tensor]:
    """Return the shift and scale of each picture's pixels, in order."""
    return [view for name, view in views.items() if name.startswith("pixel_norm")]


def load_policy(setup: Setup, state: State) -> ImitationPolicy:
    """Return the policy of a saved state."""
    policy = ImitationPolicy.from_state(state["policy"], setup.spec)
    policy.version = int(state["num_updates"])
    return policy
