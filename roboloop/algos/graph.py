"""Policies as ONNX graphs: normaliser, network, the likeliest action, and the environment's units and bounds."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.imitation.policy import ImitationModel, ImitationPolicy
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Seen
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale, ActorPolicy, net_of
from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK, parts_of
from roboloop.core.state import spec_from_data
from roboloop.core.types import EnvSpec, PortablePolicy, State
from roboloop.nets import graph as draw
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import under
from roboloop.nets.graph import Graph, GraphInputs, Value
from roboloop.nets.mlp import MLPSpec
from roboloop.nets.normalize import CLIP
from roboloop.nets.stepwise import StepwiseSpec
from roboloop.nets.trunk import TrunkSpec
from roboloop.nets.vision import VisionEncoder, conv_name, pixel_norm

HEADS = "a policy with heads or soft modules cannot be exported: only one with algo.net 'plain' can"


def onnx_model(policy: PortablePolicy) -> bytes:
    """Return the bytes of an ONNX file that acts as the policy does without exploring."""
    if isinstance(policy, LearnerPolicy):
        return _drawn_by_torch(policy)
    if not isinstance(policy, ActorPolicy | ImitationPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot be exported: only policies of SAC, PPO and BC can")
    graph, spec = Graph(), spec_from_data(policy.blueprint()["spec"])
    unit = _actor(graph, policy, spec) if isinstance(policy, ActorPolicy) else _imitation(graph, policy, spec)
    graph.output(draw.ACTION, _in_env_units(graph, ActionScale(spec), unit), spec.action_dim)
    return graph.model(type(policy).__name__)


class ExportedPolicy(nn.Module):
    """A learner's ``decide`` with all that stands around it: fields, normaliser, units and bounds."""

    def __init__(self, policy: LearnerPolicy) -> None:
        super().__init__()
        self.learner, scale = policy.learner, ActionScale(policy.learner.spec)
        self.names = [*parts_of(self.learner.spec)]
        self.bounds = torch.from_numpy(scale.low), torch.from_numpy(scale.high)
        self.units = torch.from_numpy(scale.half), torch.from_numpy(scale.center)
        self.norm = torch.from_numpy(policy.norm.numbers).view(2, -1)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return actions in the environment's units and the memory, for fields of observations and the memory."""
        obs, memory = dict(zip(self.names, given, strict=False)), given[-1]
        half, center = self.units
        low, high = self.bounds
        decided = self.learner.decide(self._seen(obs), memory, None)
        action = torch.minimum(torch.maximum(decided.action * half + center, low), high)
        return (action,) if decided.memory is None else (action, decided.memory)

    def _seen(self, obs: Mapping[str, Tensor]) -> Seen:
        """Return observations as the learner takes them; of a stack of masks the newest."""
        fields, reads = self.learner.fields, self.learner.reads
        some = next(iter(obs.values()))
        vector = torch.cat([some.flatten(1)[:, :0].float(), *(obs[n].float().flatten(1) for n in fields.vectors)], 1)
        if self.norm.shape[1]:
            vector = ((vector - self.norm[0]) * self.norm[1]).clamp(-CLIP, CLIP)
        if not fields.pictures and not fields.mask_dim:
            return vector
        seen = Rows(vector=vector)
        for i, picture in enumerate(fields.pictures):
            pixels = obs[picture.field].reshape(-1, *picture[1:])
            setattr(seen, f"picture{i}", reads[i].blocks_of(pixels) if reads else pixels)
        if fields.mask_dim:
            seen.mask = obs[MASK].flatten(1)[:, -fields.mask_dim :] != 0
        return seen


def _drawn_by_torch(policy: LearnerPolicy) -> bytes:
    """Return the graph that torch's exporter draws."""
    learner, names, example = policy.learner, [], []
    for name, about in parts_of(learner.spec).items():
        shape = (2, *draw.lead(learner.frame_stack), *about.shape)  # of one row it would make a constant
        names.append(name or draw.OBS)
        example.append(torch.from_numpy(np.zeros(shape, about.dtype)))
    if policy.memory_size:
        names.append(draw.MEMORY)
        example.append(torch.zeros(2, policy.memory_size))
    batch = {0: torch.export.Dim(draw.BATCH)}
    outputs = [draw.ACTION, draw.MEMORY_AFTER] if policy.memory_size else [draw.ACTION]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that it could also export
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            ExportedPolicy(policy).eval(), tuple(example), dynamo=True, dynamic_shapes=((batch,) * len(names),),
            input_names=names, output_names=outputs, verbose=False,
        )  # fmt: skip
    assert program is not None
    model: bytes = program.model_proto.SerializeToString()
    return model


def _actor(graph: Graph, policy: ActorPolicy, spec: EnvSpec) -> Value:
    net = net_of(policy.weights)
    if policy.sight is not None and isinstance(net, TrunkSpec):
        return draw.chosen(graph, _choices(spec), _seeing(graph, policy, policy.sight, net), None, squash=True)
    if not isinstance(net, MLPSpec) or net.groups > 1:
        raise ConfigError(HEADS)
    frames = net.widths[0] // math.prod(spec.obs_shape)
    obs = graph.input(draw.OBS, (*draw.lead(frames), *spec.obs_shape), spec.obs_dtype)
    vector = graph.op("Flatten", draw.floats(graph, obs), axis=1)
    outputs = draw.mlp(graph, net, policy.weights, draw.scaled(graph, vector, policy.norm.numbers.reshape(2, -1)))
    return draw.chosen(graph, _choices(spec), outputs, None, squash=True)


def _seeing(graph: Graph, policy: ActorPolicy, sight: VisionEncoder, net: TrunkSpec) -> Value:
    """Return what an actor makes of pictures, and of the vector beside them."""
    seen = draw.observation(graph, spec_from_data(policy.blueprint()["spec"]), sight.fields)
    weights = policy.weights
    features = [
        draw.conv(graph, conv, under(conv_name(i), weights), pixel_norm(conv, "cpu"), pixels)
        for i, (conv, pixels) in enumerate(zip(sight.spec.convs, seen.pictures, strict=True))
    ]
    parts = [draw.mlp(graph, net.trunk, under("trunk", weights), graph.beside(features))]
    if seen.vector is not None:
        parts.append(draw.scaled(graph, seen.vector, policy.norm.numbers.reshape(2, -1)))
    return draw.mlp(graph, net.head, under("head", weights), graph.beside(parts))


def _imitation(graph: Graph, policy: ImitationPolicy, spec: EnvSpec) -> Value:
    model, state = ImitationModel.from_data(policy.blueprint()), policy.state()
    if not isinstance(model.net, StepwiseSpec):
        raise ConfigError(
            "a Decision Transformer cannot be exported: it acts on past steps and on rewards, not on one observation"
        )
    if model.num_tasks > 1:
        raise ConfigError(HEADS)
    seen = draw.observation(graph, spec, model.fields)
    vector, features = _encoded(graph, seen, model.state.convs, state)
    states = graph.beside(features if vector is None else [*features, vector])
    outputs = draw.mlp(graph, model.net.mlp, model.of_net(state["net"]), states)
    return draw.chosen(graph, _choices(spec), outputs, seen.mask, squash=True)


def _encoded(
    graph: Graph, seen: GraphInputs, convs: tuple[ConvSpec, ...], state: State
) -> tuple[Value | None, list[Value]]:
    """Return the vector, normalised, and the features of each picture."""
    net, norms = state["net"], state["norms"]
    vector = None if seen.vector is None else draw.scaled(graph, seen.vector, norms["vector_norm"].numpy())
    features = [
        draw.conv(graph, conv, under(f"picture{i}", net), norms[f"pixel_norm{i}"], pixels)
        for i, (conv, pixels) in enumerate(zip(convs, seen.pictures, strict=True))
    ]
    return vector, features


def _in_env_units(graph: Graph, scale: ActionScale, unit: Value) -> Value:
    """Return actions in the environment's units, never outside its bounds."""
    action = unit
    if not scale.is_identity:
        action = graph.op("Add", graph.op("Mul", unit, scale.half), scale.center)
    return graph.op("Min", graph.op("Max", action, scale.low), scale.high)


def _choices(spec: EnvSpec) -> tuple[int, ...]:
    return spec.action_choices or (0,) * spec.action_dim
