"""Policies as ONNX graphs: normaliser, network, the likeliest action, and the environment's units and bounds."""

from __future__ import annotations

import importlib
import logging
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.guided.intention_policy import OneIntention
from roboloop.algos.imitation.transformer import TransformerPolicy
from roboloop.algos.learner.inputs import ObsInputs, Rows
from roboloop.algos.learner.learner import Seen
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import ActionScale
from roboloop.core.errors import ConfigError
from roboloop.core.fields import MASK, PICKS, WHOLE, FieldPart, parts_of
from roboloop.core.types import PortablePolicy
from roboloop.nets.normalize import CLIP
from roboloop.nets.transformer import GATHERED

BATCH, OBS, MEMORY, MEMORY_AFTER, ACTION = "batch", "obs", "memory", "memory_after", "action"
REWARD_SO_FAR = "reward_so_far"
"""What a policy that is told how much return to reach must know of its episode."""


def onnx_model(policy: PortablePolicy) -> bytes:
    """Return the bytes of an ONNX file that acts as the policy does without exploring."""
    if isinstance(policy, LearnerPolicy):
        return _drawn_by_torch(ExportedPolicy(policy))
    if isinstance(policy, OneIntention):
        return _drawn_by_torch(ExportedPolicy(policy.actor, policy.task, policy.num_tasks))
    raise ConfigError(f"{type(policy).__name__} cannot be exported: only policies that learners learn can")


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
        self.is_told = isinstance(policy, TransformerPolicy)
        self.parts = parts_of(learner.spec)
        if self.task is not None:  # such observations are one vector
            self.parts = {WHOLE: FieldPart(np.dtype(np.float32), (learner.obs_dim - num_tasks,))}

    def examples(self) -> dict[str, Tensor]:
        """Return inputs by name, of two rows, since of one row the exporter makes a constant."""
        frames = self.learner.frame_stack
        lead = (2, frames) if frames > 1 else (2,)
        found = {n or OBS: torch.from_numpy(np.zeros((*lead, *p.shape), p.dtype)) for n, p in self.parts.items()}
        if self.learner.memory_size:
            found[MEMORY] = torch.zeros(2, self.learner.memory_size)
        if self.is_told:
            found[REWARD_SO_FAR] = torch.zeros(2)
        return found

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return actions in the environment's units, and the memory after the step where there is any."""
        learner, inputs = self.learner, dict(zip(self.parts, given, strict=False))
        memory = self._memory(given)
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

    def _memory(self, given: tuple[Tensor, ...]) -> Tensor:
        """Return a memory that may be overwritten."""
        if not self.learner.memory_size:
            return torch.zeros(given[0].shape[0], 0)
        if not self.is_told:
            return given[-1].clone()
        *_, memory, so_far = given
        return torch.cat((memory[:, :GATHERED], so_far.unsqueeze(1), memory[:, GATHERED + 1 :]), 1)

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
    for package in ("onnx", "onnxscript"):  # torch would hide which of them is missing
        importlib.import_module(package)
    examples, batch = policy.examples(), torch.export.Dim(BATCH)
    outputs = [ACTION, *[MEMORY_AFTER] * bool(policy.learner.memory_size)]
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
