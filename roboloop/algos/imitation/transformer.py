"""Decision Transformer, arXiv:2106.01345: actions from what happened and the return that is to come."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roboloop.algos.imitation.config import DTConfig
from roboloop.algos.imitation.states import StateEncoder, mask_of
from roboloop.algos.learner.data_scale import DataScale, scale_of_sources
from roboloop.algos.learner.dataset_learner import DatasetLearner
from roboloop.algos.learner.inputs import Input, Rows
from roboloop.algos.learner.learner import Decided, Learner, Loss, Step
from roboloop.algos.learner.optimizer import Adam
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.spec import Setup
from roboloop.core.types import Array, EnvSpec, State
from roboloop.nets.dropout import draw_keeps
from roboloop.nets.targets import TargetHead
from roboloop.nets.transformer import GATHERED, Transformer, WindowSteps

SEED_WORDS = 4


class TransformerNet(nn.Module):
    """Observations to states, and the transformer that sees them."""

    def __init__(self, states: StateEncoder, transformer: Transformer) -> None:
        super().__init__()
        self.states, self.transformer = states, transformer


class DecisionTransformer(Learner):
    """Predicts each action of a window from what came before it, its state, and the return that followed."""

    cfg: DTConfig
    acting = ("net",)
    takes = frozenset({"pictures", "choices"})
    return_norm: Tensor
    """Scale of returns, and the return that an episode is to reach."""

    def build(self) -> None:
        """Make the network."""
        cfg, times = self.cfg, min(self.spec.max_episode_steps, self.cfg.max_timestep)
        self.head = TargetHead(self.spec.action_choices or (0,) * self.action_dim)
        states, width = StateEncoder(cfg, self.fields), self.head.width
        sizes = (states.width, width, width, cfg.context, times, cfg.width, cfg.layers, cfg.heads)
        self.net = TransformerNet(states, Transformer(*sizes))
        self.reads, self.memory_size = states.reads, self.net.transformer.memory_size
        self.register_buffer("return_norm", torch.tensor([1.0, 0.0]))

    def steps(self) -> tuple[Step, ...]:
        """Return one step."""
        cfg = self.cfg
        return (Step("loss", of={"net": Adam(cfg.lr, cfg.weight_decay, cfg.max_grad_norm)}),)

    def scratch(self) -> dict[str, Input]:
        """Return the masks of dropout."""
        windows = self.cfg.batch_size // self.cfg.shards
        shapes = self.net.transformer.dropped(windows) if self.cfg.dropout else {}
        return {f"keeps.{place}": Input(shape) for place, shape in shapes.items()}

    def prepare(self, batch: Rows) -> None:
        """Draw them from the seed that the shard is given."""
        if self.cfg.dropout:
            rng = np.random.Generator(np.random.SFC64(batch.seed.tolist()))
            draw_keeps(self.cfg.dropout, rng, vars(batch.keeps).values())

    def loss(self, batch: Rows, noise: Rows) -> Loss:
        """Return how far predicted actions are from those of the data, over valid steps."""
        to_go = batch.return_to_go.unsqueeze(1) / self.return_norm[0]
        encoded = self.head.encode(batch.action)
        steps = WindowSteps(to_go, self.net.states(batch.obs), encoded, batch.t, batch.weight > 0)
        outputs = self.net.transformer(steps, vars(batch.keeps) if self.cfg.dropout else {})
        return self.head.loss(outputs, batch.action, batch.weight, mask_of(batch.obs))

    def decide(self, obs: Any, memory: Tensor, noise: Tensor | None) -> Decided:
        """Return the action of one more step, and the memory with that step in it."""
        scale, target = self.return_norm
        to_go = (target - memory[:, GATHERED]).unsqueeze(1) / scale
        outputs = self.net.transformer.step(self.net.states(obs), to_go, memory)
        action = self.head.choose(outputs, mask_of(obs), noise)
        self.net.transformer.note_action(memory, self.head.encode(action))
        return Decided(action, memory)

    def draws(self, rng: np.random.Generator, rows: int) -> Array:
        """Return what choices are drawn by."""
        return self.head.draws(rng, rows)


class TransformerPolicy(LearnerPolicy):
    """Is told how much return to reach, and what its actions brought."""

    follows_target = True

    def observe_reward(self, memory: Array, reward: Array) -> Array:
        """Take note of the raw rewards ``[B]`` of the actions: less return is then to go."""
        after = memory.copy()
        after[:, GATHERED] += reward
        return after

    @property
    def target(self) -> float:
        """The return that an episode is to reach."""
        return float(self.learner.get_buffer("return_norm")[1])

    def aim(self, target: float, return_scale: float | None = None) -> None:
        """Set it, and the scale of returns where that is given."""
        norm = self.learner.get_buffer("return_norm")
        norm[1] = target
        if return_scale is not None:
            norm[0] = return_scale

    def with_target(self, target: float) -> LearnerPolicy:
        """Return a copy that is to reach another return."""
        policy = self.snapshot()
        assert isinstance(policy, TransformerPolicy)
        policy.aim(target)
        return policy


def decision_transformer(
    cfg: DTConfig, spec: EnvSpec, scale: DataScale, target: float, seed: int, device: str = "cpu"
) -> DatasetLearner:
    """Return the Algorithm; its policy is told to reach the return ``target``, in raw reward."""
    algo = DatasetLearner(DecisionTransformer, cfg, spec, scale, seed, device, TransformerPolicy)
    assert isinstance(algo.policy, TransformerPolicy)
    algo.policy.aim(target, scale.return_scale)
    return algo


def make(setup: Setup) -> DatasetLearner:
    """Return a Decision Transformer for a run; a target return that was not given is the best one in the data."""
    first = setup.sources[0]
    best = float(first.dataset.table["episode_return"][first.rows].max())
    target = best if setup.experiment.target is None else setup.experiment.target
    return decision_transformer(setup.config, setup.spec, scale_of_sources(setup), target, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    return TransformerPolicy.from_state(DecisionTransformer(setup.config, setup.spec), state)
