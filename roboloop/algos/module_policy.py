"""A policy over an ``nn.Module``: write how to act, and workers, checkpoints and evaluation follow."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.policy import ActionScale
from roboloop.core.blueprint import kind_of
from roboloop.core.errors import ConfigError
from roboloop.core.resolve import load
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.core.types import Array, Decision, EnvSpec, State


class ActingModule(Protocol):
    """What acts: an ``nn.Module`` class that another process can import, made as ``Class(spec, options)``."""

    def act(self, obs: Tensor, explore: bool, rng: np.random.Generator) -> Tensor:
        """Return actions ``[B, A]`` in [-1, 1] for flat float observations ``[B, N]``."""
        ...


class ModulePolicy:
    """Acts by a module whose weights a trainer may go on changing."""

    memory_size = 0

    def __init__(self, module: type[nn.Module], spec: EnvSpec, options: dict[str, Any], device: str = "cpu") -> None:
        if not spec.is_continuous or spec.obs_dtype.names is not None:
            raise ConfigError(f"{module.__name__} takes plain observations and continuous actions")
        self.module: Any = module(spec, options).to(device)
        self.version = 0
        self._spec, self._options, self._device = spec, options, device
        self._scale = ActionScale(spec)

    @torch.no_grad()
    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return actions ``[B, A]`` in the environment's units."""
        flat = np.asarray(obs, dtype=np.float32).reshape(len(obs), -1)
        action = self.module.act(torch.from_numpy(flat).to(self._device), explore, rng)
        return Decision(self._scale.to_env(action.cpu().numpy()), memory)

    def _tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = self.module.state_dict()
        return tensors

    def state(self) -> State:
        """Return the weights as copies, and the options that the module was made with."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self._tensors().items()}
        return {"weights": weights, "options": self._options}

    def load(self, state: State) -> None:
        """Restore the weights that ``state`` returned; what does not fit raises."""
        self.module.load_state_dict({name: torch.as_tensor(value) for name, value in state["weights"].items()})

    @classmethod
    def from_state(cls, module: type[nn.Module], spec: EnvSpec, state: State, version: int) -> ModulePolicy:
        """Build a policy from what ``state`` returned."""
        policy = cls(module, spec, dict(state["options"]))
        policy.load(state)
        policy.version = version
        return policy

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {
            "kind": kind_of(self), "module": kind_of(self.module), "spec": spec_to_data(self._spec),
            "options": self._options,
        }  # fmt: skip

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> ModulePolicy:
        """Build the same policy anew, with weights still to be read."""
        return cls(load(data["module"]), spec_from_data(data["spec"]), data["options"])

    @property
    def num_weights(self) -> int:
        """Length of the flat weights: parameters and buffers."""
        return sum(tensor.numel() for tensor in self._tensors().values())

    def write_weights(self, out: Array) -> None:
        """Write parameters and buffers one after another."""
        flat, start = torch.from_numpy(out), 0
        for tensor in self._tensors().values():
            flat[start : start + tensor.numel()].copy_(tensor.detach().reshape(-1))
            start += tensor.numel()

    @torch.no_grad()
    def read_weights(self, flat: Array, version: int) -> None:
        """Take over what ``write_weights`` wrote."""
        source, start = torch.from_numpy(flat), 0
        for tensor in self._tensors().values():
            tensor.copy_(source[start : start + tensor.numel()].reshape(tensor.shape))
            start += tensor.numel()
        self.version = version

    def snapshot(self) -> ModulePolicy:
        """Return a policy that no later update changes."""
        return self.from_state(type(self.module), self._spec, self.state(), self.version)
