"""Learners so small that their numbers can be followed by hand, and batches for them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.learning import Adam, BatchNorm, Learner, LearnerConfig, Step, mlp, target_of
from roboloop.core.types import Batch, EnvSpec

SPEC = EnvSpec((3,), np.dtype(np.float32), (-1.0, -2.0), (1.0, 2.0), 100)
ROWS = 8


@dataclass(frozen=True)
class ToyConfig(LearnerConfig):
    name: str = "toy"
    batch_size: int = ROWS
    processes: int = 1
    lr: float = 0.1
    max_grad_norm: float = 0.0


class Toy(Learner):
    """An actor that regresses the batch's actions."""

    def build(self):
        self.actor = mlp([self.obs_dim, 5, self.action_dim], "tanh")
        self.slow = target_of(self.actor)

    def steps(self):
        adam = Adam(self.cfg.lr, max_grad_norm=self.cfg.max_grad_norm)
        return (Step("loss", {"actor": adam}, follow={"slow": "actor"}, tau=0.25),)

    def noise(self):
        return {"blur": (self.obs_dim,)}

    def loss(self, batch, noise):
        error = self.actor(batch.obs + 0.1 * noise.blur) - batch.action
        return error.square().mean(), {"bias": error.mean()}

    def act(self, obs, noise):
        action = self.actor(obs).tanh()
        return action if noise is None else (action + noise).clamp(-1, 1)


class Normalised(Toy):
    """The same through batch normalisation."""

    def build(self):
        self.actor = nn.Sequential(BatchNorm(self.obs_dim, momentum=0.5), nn.Linear(self.obs_dim, self.action_dim))
        self.slow = target_of(self.actor)

    def loss(self, batch, noise):
        return (self.actor.train()(batch.obs) - batch.action).square().mean(), {}


def batch_of(seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    floats = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return Batch(floats(rows, 3), floats(rows, 2), floats(rows), floats(rows, 3), np.full(rows, 0.9, np.float32))


def learner_of(make=Toy, device="cpu", seed=0, **settings):
    return ReplayLearner(make, ToyConfig(**settings), SPEC, 1, seed, device)


def numbers(state, prefix=""):
    """Return every tensor of a saved state by name, as copies."""
    found = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif hasattr(value, "shape"):
            found[prefix + name] = torch.as_tensor(value).clone()
    return found


def same(a, b):
    a, b = numbers(a.state()), numbers(b.state())
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
