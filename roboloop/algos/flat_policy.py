"""Policies whose networks and norms lie in one flat vector: how they are copied, saved, sent and built again."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from roboloop.algos.policy import ActionScale
from roboloop.core.blueprint import kind_of
from roboloop.core.state import spec_to_data
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.flat import Layout, Views, clone, restore


class FlatModel(Protocol):
    """What every process must know to build the same networks."""

    @property
    def spec(self) -> EnvSpec:
        """The environment's."""

    @property
    def net_layout(self) -> Layout:
        """What is learned by gradients."""

    @property
    def layout(self) -> Layout:
        """All that acting depends on: ``net``, and shifts and scales under names of their own."""

    def to_data(self) -> dict[str, Any]:
        """Return the model as plain data, the environment's under ``spec``."""

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Return the model that ``to_data`` described."""


Model = TypeVar("Model", bound=FlatModel)


class FlatPolicy(Generic[Model]):
    """Weights that a trainer may go on changing; how to act by them is the subclass's."""

    model_type: ClassVar[type[FlatModel]]

    def __init__(self, model: Model, flat: Tensor) -> None:
        self.version = 0
        self._model, self._flat = model, flat
        self._views = model.layout.views(flat)
        self._weights = model.net_layout.views(self._views["net"])
        self._scale = ActionScale(model.spec)

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._flat.device)

    def norm(self, name: str) -> Array:
        """Return a shift and scale that acting depends on; on the CPU it is no copy."""
        numbers: Array = self._views[name].cpu().numpy()
        return numbers

    @property
    def _norms(self) -> Views:
        return {name: view for name, view in self._views.items() if name != "net"}

    def snapshot(self) -> Self:
        """Return a policy that no later update changes."""
        policy = type(self)(self._model, self._flat.clone())
        policy.version = self.version
        return policy

    def state(self) -> State:
        """Return all that acting needs beside the environment's spec, as copies."""
        described = {name: value for name, value in self._model.to_data().items() if name != "spec"}
        return {"net": clone(self._weights), "norms": clone(self._norms), **described}

    def load(self, state: State) -> None:
        """Restore the numbers that ``state`` returned; what does not fit is named."""
        restore(self._weights, state["net"], "policy")
        restore(self._norms, state["norms"], "policy norms")

    @classmethod
    def from_state(cls, state: State, spec: EnvSpec) -> Self:
        """Build a policy from the ``policy`` entry of a saved state and the environment's spec alone."""
        policy = cls.from_blueprint({**state, "spec": spec_to_data(spec)})
        policy.load(state)
        return policy

    def blueprint(self) -> dict[str, Any]:
        """Return what ``from_blueprint`` needs."""
        return {"kind": kind_of(self), **self._model.to_data()}

    @classmethod
    def from_blueprint(cls, data: dict[str, Any]) -> Self:
        """Build the same policy anew, with weights still to be read."""
        model: Any = cls.model_type.from_data(data)
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
