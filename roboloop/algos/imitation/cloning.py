"""Behaviour cloning: the action of each step from its observation alone, perhaps by a head for each task."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from roboloop.algos.imitation.config import BCConfig
from roboloop.algos.imitation.states import StateEncoder, mask_of
from roboloop.algos.learner.data_scale import DataScale, scale_of_sources
from roboloop.algos.learner.dataset_learner import DatasetLearner
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Learner, Loss, Step
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.spec import Setup
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.modules import mlp
from roboloop.nets.targets import TargetHead
from roboloop.nets.task_heads import GroupedLinear, with_heads


class CloningNet(nn.Module):
    """Observations to outputs; with several tasks, layers that all share and then each task's own."""

    def __init__(self, states: StateEncoder, cfg: BCConfig, outputs: int, num_tasks: int) -> None:
        super().__init__()
        self.states, widths = states, [states.width, *cfg.hidden]
        self.num_tasks, self._outputs = num_tasks, outputs
        self.layers = (
            with_heads(num_tasks, widths, [*cfg.head_hidden, outputs]) if num_tasks > 1 else mlp([*widths, outputs])
        )

    def forward(self, obs: Any) -> Tensor:
        """Return ``[N, outputs]``; with several tasks, rows lie task by task."""
        outputs: Tensor = self.layers(self.states(obs))
        return outputs

    def of_tasks(self, obs: Any, reads_task: bool) -> Tensor:
        """Return ``[N, outputs]`` of rows in any order, each by the head of the task that ends its state, or by one."""
        state = self.states(obs)
        own = next(i for i, layer in enumerate(self.layers) if isinstance(layer, GroupedLinear))
        shared = self.layers[:own](state)
        # every head sees every row: rows are few, and a graph must not depend on which tasks they are of
        outputs = self.layers[own:](shared.repeat(self.num_tasks, 1)).view(self.num_tasks, -1, self._outputs)
        if not reads_task:
            first: Tensor = outputs[0]
            return first
        task = state[:, -self.num_tasks :].argmax(1)
        found: Tensor = outputs.gather(0, task.view(1, -1, 1).expand(1, -1, outputs.shape[2])).squeeze(0)
        return found


class Cloning(Learner):
    """Supervised learning of actions."""

    cfg: BCConfig
    acting = ("net",)
    takes = frozenset({"pictures", "choices"})

    def build(self) -> None:
        """Make the network."""
        self.num_tasks = len(self.spec.tasks) if self.cfg.net == "heads" else 1
        self.head = TargetHead(self.spec.action_choices or (0,) * self.action_dim)
        self.net = CloningNet(StateEncoder(self.cfg, self.fields), self.cfg, self.head.width, self.num_tasks)
        self.reads = self.net.states.reads

    def steps(self) -> tuple[Step, ...]:
        """Return one step."""
        cfg = self.cfg
        return (Step("loss", of={"net": Adam(cfg.lr, cfg.weight_decay, cfg.max_grad_norm)}),)

    def loss(self, batch: Rows, noise: Rows) -> Loss:
        """Return how far actions are from those of the data, over valid steps."""
        return self.head.loss(self.net(batch.obs), batch.action, batch.weight, mask_of(batch.obs))

    def act(self, obs: Any, noise: Tensor | None) -> Tensor:
        """Return the likeliest actions, or choices that are drawn."""
        several = self.num_tasks > 1
        outputs = self.net.of_tasks(obs, bool(self.spec.own_tasks)) if several else self.net(obs)
        return self.head.choose(outputs, mask_of(obs), noise)

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return what choices are drawn by."""
        return self.head.draws(rng, rows)


def behaviour_cloning(cfg: BCConfig, spec: EnvSpec, scale: DataScale, seed: int, device: str = "cpu") -> DatasetLearner:
    """Return the Algorithm; it learns from all valid steps of its windows, and returns mean nothing to it."""
    return DatasetLearner(Cloning, cfg, spec, scale, seed, device)


def make(setup: Setup) -> DatasetLearner:
    """Return behaviour cloning for a run."""
    return behaviour_cloning(setup.config, setup.spec, scale_of_sources(setup), setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    return LearnerPolicy.from_state(Cloning(setup.config, setup.spec), state)
