"""The policy of a learner: its ``decide`` over modules that a trainer may go on changing."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.learner.inputs import Arrays, Input, ObsInputs, rows_of
from roboloop.algos.learner.kernels import CannotReplay
from roboloop.algos.learner.learner import Decided, Learner
from roboloop.algos.learner.tape import Tape
from roboloop.algos.learner.work import lay, learner_data, learner_from_data, own_memory, persistent_buffers
from roboloop.algos.policy import ActionScale
from roboloop.core.blueprint import kind_of
from roboloop.core.types import Array, Decision, State
from roboloop.nets.flat import Layout, Views, clone, restore
from roboloop.nets.normalize import FollowedNorm, Identity, Normalizer, normalizer_of
from roboloop.nets.task_heads import places_by_group

MOST_ACTS = 64
"""Numbers of rows for which the kernels of acting are kept."""
MOST_COPIED = 2**20
"""Numbers of memory up to which it pays to copy it for kernels that are run again."""
RECORD_AT = 8
"""At so many calls with one number of rows its kernels are recorded, which takes as long as some hundred calls."""


class LearnerPolicy:
    """Maps observations to actions by a learner's ``decide``."""

    def __init__(self, learner: Learner, norm: Normalizer, live: Views | None = None) -> None:
        self.learner, self.norm, self.version = learner.eval(), norm, 0
        self.memory_size = learner.memory_size
        for name in [*dict(learner.named_children()), *dict(learner.named_parameters(recurse=False))]:
            if name not in learner.acting:
                delattr(learner, name)
        names = [*dict(learner.named_parameters()), *persistent_buffers(learner)]
        self._views: Views = own_memory(learner) if live is None else {name: live[name] for name in names}
        lay(learner, self._views, keep=False)
        self._layout = Layout({name: tuple(view.shape) for name, view in self._views.items()})
        self._device = next(iter(self._views.values())).device if self._views else torch.device("cpu")
        self._scale = ActionScale(learner.spec)
        self._acts: dict[tuple[int, bool], Act] = {}

    @property
    def names(self) -> frozenset[str]:
        """Full names of the parameters and buffers that it acts by."""
        return frozenset(self._views)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return actions ``[B, A]`` in the environment's units, and what else the learner says of them."""
        noise = (self.learner.draws if explore else self.learner.calm_draws)(rng, len(obs))
        heads = self.learner.heads
        if heads == 1:
            return self._act(obs, memory, explore, noise)
        place, n = places_by_group(obs.reshape(len(obs), -1)[:, -heads:].argmax(1), heads)
        wide = heads * n
        noise = None if noise is None else spread(noise, place, wide)
        decided = self._act(spread(obs, place, wide), spread(memory, place, wide), explore, noise)
        log_prob, value = (None if x is None else x[place] for x in (decided.log_prob, decided.value))
        return Decision(decided.action[place], decided.memory[place], log_prob, value)

    def _act(self, obs: Array, memory: Array, explore: bool, noise: Array | None) -> Decision:
        rows = len(obs)
        if (rows, explore) not in self._acts:
            if len(self._acts) == MOST_ACTS:
                self._acts.clear()
            self._acts[rows, explore] = Act(self.learner, rows, noise, self._device)
        act = self._acts[rows, explore]
        act.obs.write(obs, rows, act.arrays, "obs", self.norm)
        if noise is not None:
            np.copyto(act.arrays["noise"], noise)
        said = act(memory)
        action = said["action"]
        in_env = self._scale.to_env(action) if self.learner.is_bounded else self._scale.to_env_unbounded(action).copy()
        memory = said["memory"] if self.memory_size else memory
        log_prob, value = (said[name].copy() if name in said else None for name in ("log_prob", "value"))
        return Decision(in_env, memory, log_prob, value)

    def snapshot(self) -> LearnerPolicy:
        """Return a policy that no later update changes."""
        return self.from_state(
            learner_from_data(learner_data(self.learner)), {"policy": self.state(), "num_updates": self.version}
        )

    def state(self) -> State:
        """Return weights and normaliser, as copies: all that acting needs."""
        return {"weights": clone(self._views), "norm": self.norm.state()}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        restore(self._views, state["weights"], "policy")
        self.norm.load(state["norm"])

    @classmethod
    def from_state(cls, learner: Learner, state: State) -> LearnerPolicy:
        """Build a policy from a learner and the saved state of the algorithm."""
        policy = cls(learner, normalizer_of(state["policy"]["norm"]))
        policy.load(state["policy"])
        policy.version = int(state["num_updates"])
        return policy

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {**learner_data(self.learner), "kind": kind_of(self), "norm_dim": len(self.norm.numbers) // 2}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> LearnerPolicy:
        """Build the same policy anew, with weights still to be read."""
        norm = FollowedNorm(data["norm_dim"]) if data["norm_dim"] else Identity()
        return cls(learner_from_data(data), norm)

    @property
    def num_weights(self) -> int:
        """Length of the flat weights: the modules, then the normaliser."""
        return self._layout.size + len(self.norm.numbers)

    def write_weights(self, out: Array) -> None:
        """Write modules and normaliser."""
        for name, view in self._layout.views(torch.from_numpy(out)).items():
            view.copy_(self._views[name])
        out[self._layout.size :] = self.norm.numbers

    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        for name, view in self._layout.views(torch.from_numpy(flat)).items():
            self._views[name].copy_(view)
        self.norm.numbers[:] = flat[self._layout.size :]
        self.version = version


def spread(rows: Array, place: Array, count: int) -> Array:
    """Return so many rows with the given ones in their places, and zeros between them."""
    wide = np.zeros((count, *rows.shape[1:]), rows.dtype)
    wide[place] = rows
    return wide


class Act:
    """A learner's ``decide`` for one number of rows: on the CPU its kernels, run again.

    They read memory where it was copied to; where that takes longer than they save, ``decide`` is run as it is.
    """

    def __init__(self, learner: Learner, rows: int, noise: Array | None, device: torch.device) -> None:
        self.obs = ObsInputs(learner.fields, learner.reads)
        inputs = {f"obs{end}": each for end, each in self.obs.arrays(rows).items()}
        self._is_direct = device.type == "cpu" and rows * learner.memory_size > MOST_COPIED
        if not self._is_direct:
            inputs["memory"] = Input((rows, learner.memory_size))
        if noise is not None:
            inputs["noise"] = Input(noise.shape)
        arrays = Arrays(inputs)
        self._host = arrays.views(torch.zeros(arrays.size))
        self.arrays = {name: tensor.numpy() for name, tensor in self._host.items()}
        self._learner, self._device = learner, device
        self._said: dict[str, Tensor] = {}
        self._out: dict[str, Array] = {}
        self._run, self._calls = self._eager, 0

    def __call__(self, memory: Array) -> Mapping[str, Array]:
        """Return what was decided by its name in ``Decided``; the next call overwrites it, but for the memory."""
        if self._is_direct:
            self._host["memory"] = torch.from_numpy(memory.copy())
            self._eager()
            return self._out
        own = self.arrays["memory"]  # what a learner without memory is given belongs to others
        if own.size:
            np.copyto(own, memory)
        self._calls += 1
        if self._calls == RECORD_AT and self._device.type == "cpu":
            with contextlib.suppress(CannotReplay):
                self._run = Tape(self._eager).run
            if own.size:
                np.copyto(own, memory)  # recording has overwritten it
        self._run()
        return {name: array.copy() if name == "memory" else array for name, array in self._out.items()}

    @torch.no_grad()
    def _eager(self) -> None:
        given = rows_of({name: tensor.to(self._device) for name, tensor in self._host.items()})
        decided = self._learner.decide(given.obs, given.memory, getattr(given, "noise", None))
        for name, value in zip(Decided._fields, decided, strict=True):
            if value is self._host["memory"] or (value is not None and self._is_direct):
                self._out[name] = value.numpy()
            elif value is not None:
                if name not in self._said:
                    self._said[name] = torch.zeros(value.shape)
                    self._out[name] = self._said[name].numpy()
                self._said[name].copy_(value)
