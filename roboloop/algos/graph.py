"""Policies as ONNX graphs: normaliser, network, the likeliest action, and the environment's units and bounds."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.guided.intention_policy import OneIntention
from roboloop.algos.imitation.policy import ImitationModel, ImitationPolicy
from roboloop.algos.learner.inputs import ObsInputs, Rows
from roboloop.algos.learner.learner import Seen
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale
from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK, PICKS, WHOLE, FieldPart, parts_of
from roboloop.core.state import spec_from_data
from roboloop.core.types import EnvSpec, PortablePolicy, State
from roboloop.nets import graph as draw
from roboloop.nets.conv import ConvSpec
from roboloop.nets.flat import under
from roboloop.nets.graph import Graph, GraphInputs, Value
from roboloop.nets.normalize import CLIP
from roboloop.nets.stepwise import StepwiseSpec

HEADS = "a cloned policy with heads cannot be exported"


def onnx_model(policy: PortablePolicy) -> bytes:
    """Return the bytes of an ONNX file that acts as the policy does without exploring."""
    if isinstance(policy, LearnerPolicy):
        return _drawn_by_torch(ExportedPolicy(policy))
    if isinstance(policy, OneIntention):
        return _drawn_by_torch(ExportedPolicy(policy.actor, policy.task, policy.num_tasks))
    if not isinstance(policy, ImitationPolicy):
        raise ConfigError(f"{type(policy).__name__} cannot be exported: only policies that learners learn can")
    graph, spec = Graph(), spec_from_data(policy.blueprint()["spec"])
    unit = _imitation(graph, policy, spec)
    graph.output(draw.ACTION, _in_env_units(graph, ActionScale(spec), unit), spec.action_dim)
    return graph.model(type(policy).__name__)


class ExportedPolicy(nn.Module):
    """A learner's ``decide`` with all that stands around it: fields, normaliser, heads, units and bounds."""

    def __init__(self, policy: LearnerPolicy, task: int = 0, num_tasks: int = 0) -> None:
        """Take a policy; of one that is told its task, the number of that, which then is no input."""
        super().__init__()
        self.learner = learner = policy.learner
        if learner.calm_draws(np.random.default_rng(0), 1) is not None:
            raise ConfigError("a policy that draws its picks cannot be exported: only one that picks the best")
        scale = ActionScale(learner.spec)
        self.bounds = torch.from_numpy(scale.low), torch.from_numpy(scale.high)
        self.units = torch.from_numpy(scale.half), torch.from_numpy(scale.center)
        self.norm = torch.from_numpy(policy.norm.numbers.copy()).view(2, -1)
        self.task = torch.eye(num_tasks)[task : task + 1] if num_tasks else None
        self.parts = parts_of(learner.spec)
        if self.task is not None:  # such observations are one vector
            self.parts = {WHOLE: FieldPart(np.dtype(np.float32), (learner.obs_dim - num_tasks,))}

    def examples(self) -> dict[str, Tensor]:
        """Return inputs by name, of two rows, since of one row the exporter makes a constant."""
        lead = (2, *draw.lead(self.learner.frame_stack))
        found = {n or draw.OBS: torch.from_numpy(np.zeros((*lead, *p.shape), p.dtype)) for n, p in self.parts.items()}
        memory = {draw.MEMORY: torch.zeros(2, self.learner.memory_size)} if self.learner.memory_size else {}
        return found | memory

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return actions in the environment's units, and the memory after the step where there is any."""
        learner, inputs = self.learner, dict(zip(self.parts, given, strict=False))
        memory = given[-1] if learner.memory_size else torch.zeros(given[0].shape[0], 0)
        vector = [
            given[0].flatten(1)[:, :0].float(),
            *(inputs[name].float().flatten(1) for name in learner.fields.vectors),
        ]
        vector += [] if self.task is None else [self.task.expand(given[0].shape[0], -1)]
        numbers = torch.cat(vector, 1)
        seen = self._seen(inputs, self._normalised(numbers))
        if learner.heads > 1:
            action, after = self._of_own_head(numbers, seen), None
        else:
            action, after, *_ = learner.decide(seen, memory, None)
        half, center = self.units
        low, high = self.bounds
        action = torch.minimum(torch.maximum(action * half + center, low), high)
        return (action,) if after is None else (action, after)

    def _normalised(self, vector: Tensor) -> Tensor:
        return ((vector - self.norm[0]) * self.norm[1]).clamp(-CLIP, CLIP) if self.norm.shape[1] else vector

    def _seen(self, inputs: dict[str, Tensor], vector: Tensor) -> Seen:
        """Return what the learner sees."""
        learner, fields = self.learner, self.learner.fields
        if not ObsInputs(fields).is_record:
            return vector
        seen = {"vector": vector}
        for i, picture in enumerate(fields.pictures):
            pixels = inputs[picture.field].reshape(-1, *picture[1:])
            seen[f"picture{i}"] = learner.reads[i].blocks_of(pixels) if learner.reads else pixels
        if fields.mask_dim:
            seen["mask"] = inputs[MASK].flatten(1)[:, -fields.mask_dim :] != 0
        if fields.picks:
            seen["picks"] = inputs[PICKS].float()
        return Rows(**seen)

    def _of_own_head(self, numbers: Tensor, seen: Tensor) -> Tensor:
        """Return actions of rows of any order: every head's, of which each row takes its own."""
        heads, rows = self.learner.heads, numbers.shape[0]
        own = numbers[:, -heads:].argmax(1) == torch.arange(heads).unsqueeze(1)
        of_all = self.learner.act(seen.repeat(heads, 1), None).view(heads, rows, -1)
        return (of_all * own.unsqueeze(2)).sum(0)


def _drawn_by_torch(policy: ExportedPolicy) -> bytes:
    """Return the graph that torch's exporter draws."""
    examples, batch = policy.examples(), torch.export.Dim(draw.BATCH)
    outputs = [draw.ACTION, *[draw.MEMORY_AFTER] * bool(policy.learner.memory_size)]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that it could also export
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            policy.eval(), tuple(examples.values()), dynamo=True, dynamic_shapes=(tuple({0: batch} for _ in examples),),
            input_names=[*examples], output_names=outputs, verbose=False,
        )  # fmt: skip
    assert program is not None
    model: bytes = program.model_proto.SerializeToString()
    return model


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
