"""Policies as ONNX graphs: normaliser, network, the likeliest action, and the environment's units and bounds."""

from __future__ import annotations

import logging
import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.imitation.policy import ImitationModel, ImitationPolicy
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale, ActorPolicy, net_of
from roboloop.algos.ppo.policy import PPOModel, PPOPolicy
from roboloop.core.errors import ConfigError
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
    if not isinstance(policy, ActorPolicy | PPOPolicy | ImitationPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot be exported: only policies of SAC, PPO and BC can")
    graph, spec = Graph(), spec_from_data(policy.blueprint()["spec"])
    if isinstance(policy, ActorPolicy):
        unit, after = _actor(graph, policy, spec), None
    elif isinstance(policy, PPOPolicy):
        unit, after = _ppo(graph, policy, spec)
    else:
        unit, after = _imitation(graph, policy, spec), None
    graph.output(draw.ACTION, _in_env_units(graph, ActionScale(spec), unit), spec.action_dim)
    if after is not None:
        graph.output(draw.MEMORY_AFTER, after, policy.memory_size)
    return graph.model(type(policy).__name__)


class ExportedAct(nn.Module):
    """A learner's ``act`` with all that stands around it: normaliser, units and bounds."""

    def __init__(self, policy: LearnerPolicy) -> None:
        super().__init__()
        self.learner, scale = policy.learner, ActionScale(policy.learner.spec)
        self.bounds = torch.from_numpy(scale.low), torch.from_numpy(scale.high)
        self.units = torch.from_numpy(scale.half), torch.from_numpy(scale.center)
        self.norm = torch.from_numpy(policy.norm.numbers).view(2, -1)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions in the environment's units."""
        seen = obs.float().flatten(1)
        if self.norm.shape[1]:
            seen = ((seen - self.norm[0]) * self.norm[1]).clamp(-CLIP, CLIP)
        half, center = self.units
        low, high = self.bounds
        return torch.minimum(torch.maximum(self.learner.act(seen, None) * half + center, low), high)


def _drawn_by_torch(policy: LearnerPolicy) -> bytes:
    """Return the graph that torch's exporter draws."""
    learner = policy.learner
    if learner.spec.obs_dtype.names is not None:
        raise ConfigError("a policy over named fields cannot be exported yet: only over plain observations")
    shape = (2, *draw.lead(learner.frame_stack), *learner.spec.obs_shape)  # of one row it would make a constant
    example = torch.from_numpy(np.zeros(shape, learner.spec.obs_dtype))
    batch = torch.export.Dim(draw.BATCH)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that it could also export
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            ExportedAct(policy).eval(), (example,), dynamo=True, dynamic_shapes=({0: batch},), input_names=[draw.OBS],
            output_names=[draw.ACTION], verbose=False,
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


def _ppo(graph: Graph, policy: PPOPolicy, spec: EnvSpec) -> tuple[Value, Value | None]:
    model, state = PPOModel.from_data(policy.blueprint()), policy.state()
    seen = draw.observation(graph, spec, model.fields)
    vector, features = _encoded(graph, seen, model.net.convs, state)
    outputs, after = draw.actor(graph, model.net, state["net"], vector, features)
    return draw.chosen(graph, _choices(spec), outputs, seen.mask, squash=False), after


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
