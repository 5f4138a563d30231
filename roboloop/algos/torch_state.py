"""Modules and optimisers of plain PyTorch as part of a checkpoint: tensors and JSON values only."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from roboloop.core.types import State


def module_state(module: nn.Module) -> State:
    """Return parameters and buffers as copies."""
    return {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}


def load_module(module: nn.Module, state: State) -> None:
    """Restore what ``module_state`` returned; what does not fit raises."""
    module.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})


def optimizer_state(optimizer: torch.optim.Optimizer) -> State:
    """Return moments and counters by parameter, as copies; step sizes are the config's."""
    saved: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {str(number): {k: _copied(v) for k, v in moments.items()} for number, moments in saved.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Restore what ``optimizer_state`` returned."""
    moments = {int(number): {k: _tensor(v) for k, v in saved.items()} for number, saved in state.items()}
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})


def _copied(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.as_tensor(value) if hasattr(value, "shape") else value
