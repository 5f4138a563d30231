"""Policies as ONNX graphs: normaliser, network, the likeliest action, and the environment's units and bounds."""

from __future__ import annotations

import logging
import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.imitation.transformer import TransformerPolicy
from roboloop.algos.learner.inputs import ObsInputs, Rows
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale, ActorPolicy, net_of
from roboloop.algos.ppo.policy import PPOModel, PPOPolicy
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
from roboloop.nets.transformer import GATHERED
from roboloop.nets.trunk import TrunkSpec
from roboloop.nets.vision import VisionEncoder, conv_name, pixel_norm

HEADS = "a policy with heads or soft modules cannot be exported: only one with algo.net 'plain' can"


def onnx_model(policy: PortablePolicy) -> bytes:
    """Return the bytes of an ONNX file that acts as the policy does without exploring."""
    if isinstance(policy, LearnerPolicy):
        return _drawn_by_torch(policy)
    if not isinstance(policy, ActorPolicy | PPOPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot be exported: only policies of SAC, PPO and BC can")
    graph, spec = Graph(), spec_from_data(policy.blueprint()["spec"])
    if isinstance(policy, ActorPolicy):
        unit, after = _actor(graph, policy, spec), None
    else:
        unit, after = _ppo(graph, policy, spec)
    graph.output(draw.ACTION, _in_env_units(graph, ActionScale(spec), unit), spec.action_dim)
    if after is not None:
        graph.output(draw.MEMORY_AFTER, after, policy.memory_size)
    return graph.model(type(policy).__name__)


class ExportedAct(nn.Module):
    """A learner's ``decide`` with all that stands around it: normaliser, blocks of pictures, units and bounds."""

    def __init__(self, policy: LearnerPolicy) -> None:
        super().__init__()
        self.learner, scale = policy.learner, ActionScale(policy.learner.spec)
        self.bounds = torch.from_numpy(scale.low), torch.from_numpy(scale.high)
        self.units = torch.from_numpy(scale.half), torch.from_numpy(scale.center)
        self.norm = torch.from_numpy(policy.norm.numbers).view(2, -1)
        fields = parts_of(self.learner.spec)
        lead = draw.lead(self.learner.frame_stack)
        self.inputs = {name or draw.OBS: ((*lead, *about.shape), about.dtype) for name, about in fields.items()}
        if policy.memory_size:
            self.inputs[draw.MEMORY] = ((policy.memory_size,), np.dtype(np.float32))
        self.is_told = isinstance(policy, TransformerPolicy)
        if self.is_told:
            self.inputs[draw.REWARD_SO_FAR] = ((), np.dtype(np.float32))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return actions in the environment's units, and the memory after them where there is any."""
        given = dict(zip(self.inputs, inputs, strict=True))
        memory = given.get(draw.MEMORY, nothing_of(inputs[0]))
        if self.is_told:
            so_far = given[draw.REWARD_SO_FAR].unsqueeze(1)
            memory = torch.cat((memory[:, :GATHERED], so_far, memory[:, GATHERED + 1 :]), 1)
        decided = self.learner.decide(self._seen(given), memory.clone(), None)
        half, center = self.units
        low, high = self.bounds
        action = torch.minimum(torch.maximum(decided.action * half + center, low), high)
        return (action,) if decided.memory is None else (action, decided.memory)

    def _seen(self, given: dict[str, Tensor]) -> Tensor | Rows:
        """Return observations as the learner sees them."""
        fields, reads = self.learner.fields, self.learner.reads
        columns = [given[name or draw.OBS].float().flatten(1) for name in fields.vectors]
        vector = torch.cat(columns, 1) if columns else nothing_of(next(iter(given.values())))
        if self.norm.shape[1]:
            vector = ((vector - self.norm[0]) * self.norm[1]).clamp(-CLIP, CLIP)
        if not ObsInputs(fields, reads).is_record:
            return vector
        seen = Rows(vector=vector)
        for i, picture in enumerate(fields.pictures):
            pixels = given[picture.field or draw.OBS].reshape(-1, *picture[1:])
            setattr(seen, f"picture{i}", reads[i].blocks_of(pixels) if reads else pixels)
        if fields.mask_dim:  # the newest frame comes last
            seen.mask = given[MASK].flatten(1)[:, -fields.mask_dim :] != 0
        return seen


def nothing_of(rows: Tensor) -> Tensor:
    """Return as many rows of no numbers: ``len`` would make the number of rows a constant."""
    return rows.flatten(1)[:, :0].float()


def _drawn_by_torch(policy: LearnerPolicy) -> bytes:
    """Return the graph that torch's exporter draws."""
    act = ExportedAct(policy).eval()
    # examples of one row would make it a constant
    examples = tuple(torch.from_numpy(np.zeros((2, *shape), dtype)) for shape, dtype in act.inputs.values())
    batch = torch.export.Dim(draw.BATCH)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that it could also export
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own ways
        program = torch.onnx.export(
            act, examples, dynamo=True, dynamic_shapes=(tuple({0: batch} for _ in examples),), verbose=False,
            input_names=[*act.inputs], output_names=[draw.ACTION, *[draw.MEMORY_AFTER] * bool(policy.memory_size)],
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
