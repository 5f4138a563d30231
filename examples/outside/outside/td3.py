"""TD3 (arXiv:1802.09477) in plain PyTorch, in one file: config, networks, losses and the record that roboloop finds."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from roboloop.algos.limits import above_zero, at_least_one, has_layers, within_one
from roboloop.algos.module_policy import ModulePolicy
from roboloop.algos.policy import ActionScale
from roboloop.algos.spec import AlgorithmSpec, Setup
from roboloop.algos.torch_state import load_module, load_optimizer, module_state, optimizer_state
from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.types import Batch, BatchSpec, EnvSpec, Metrics, State


@dataclass(frozen=True)
class TD3Config:
    """Twin delayed deep deterministic policy gradient."""

    name: str = "td3"
    """Which algorithm this section configures."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    gamma: float = 0.99
    """Discount per environment step."""
    tau: float = 0.005
    """Fraction by which targets follow at each delayed update."""
    actor_lr: float = 1e-3
    """Adam step size of the actor."""
    critic_lr: float = 1e-3
    """Adam step size of the critics."""
    batch_size: int = 256
    """Transitions per update."""
    policy_delay: int = 2
    """Critic updates per actor update."""
    explore_noise: float = 0.1
    """Standard deviation of exploration noise; actions reach from -1 to 1."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions."""
    noise_clip: float = 0.5
    """Largest noise on target actions."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        at_least_one(self, "batch_size", "policy_delay")
        above_zero(self, "actor_lr", "critic_lr")
        within_one(self, "gamma", "tau")
        has_layers(self, "hidden")


def mlp(sizes: list[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers = [layer for n, m in itertools.pairwise(sizes) for layer in (nn.Linear(n, m), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Actor(nn.Module):
    """A deterministic policy; other processes import this class and are sent its weights."""

    def __init__(self, spec: EnvSpec, options: dict[str, Any]) -> None:
        super().__init__()
        self.explore_noise = float(options["explore_noise"])
        self.net = mlp([options["obs_dim"], *options["hidden"], spec.action_dim])

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions in [-1, 1]."""
        return torch.tanh(self.net(obs))

    def act(self, obs: Tensor, explore: bool, rng: np.random.Generator) -> Tensor:
        """Return actions, with noise where the policy explores."""
        action: Tensor = self(obs)
        if not explore:
            return action
        noise = torch.from_numpy(rng.standard_normal(tuple(action.shape), dtype=np.float32))
        return (action + self.explore_noise * noise.to(action.device)).clamp(-1, 1)


class TD3:
    """The algorithm: ``update`` takes one step of the critics and, now and then, of the actor."""

    def __init__(self, cfg: TD3Config, spec: EnvSpec, frame_stack: int, seed: int, device: str) -> None:
        self.cfg, self.num_updates, self.progress = cfg, 0, 0.0
        self.needs = BatchSpec(cfg.batch_size, 1, cfg.gamma, frame_stack)
        obs_dim = frame_stack * int(np.prod(spec.obs_shape))
        options = {"obs_dim": obs_dim, "hidden": list(cfg.hidden), "explore_noise": cfg.explore_noise}
        with torch.random.fork_rng():
            torch.manual_seed(derive(seed, "td3-init"))
            self.policy = ModulePolicy(Actor, spec, options, device)
            sizes = [obs_dim + spec.action_dim, *cfg.hidden, 1]
            self.critics = nn.ModuleList([mlp(sizes), mlp(sizes)]).to(device)
        self.actor: Actor = self.policy.module
        self.targets = nn.ModuleDict({"actor": copy.deepcopy(self.actor), "critics": copy.deepcopy(self.critics)})
        self._optimizers = {
            "actor": torch.optim.Adam(self.actor.parameters(), cfg.actor_lr),
            "critics": torch.optim.Adam(self.critics.parameters(), cfg.critic_lr),
        }
        self._scale, self._device, self._rng = ActionScale(spec), device, stream(seed, "td3-noise")

    def update(self, batch: Batch) -> Metrics:
        """Take one gradient step on a batch of transitions (algorithm 1 of the paper)."""
        columns = (batch.obs, self._scale.to_unit(batch.action), batch.reward, batch.next_obs, batch.discount)
        obs, action, reward, next_obs, discount = (
            torch.from_numpy(np.ascontiguousarray(c, np.float32)).to(self._device) for c in columns
        )
        obs, next_obs = obs.flatten(1), next_obs.flatten(1)
        loss = self.critic_loss(obs, action, reward, next_obs, discount)
        self._step("critics", loss)
        metrics = {"loss/critic": loss.item()}
        if self.num_updates % self.cfg.policy_delay == 0:
            self._step("actor", self.actor_loss(obs))
            self._follow()
        self.num_updates += 1
        self.policy.version = self.num_updates
        return metrics

    def critic_loss(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, discount: Tensor) -> Tensor:
        """Clipped double Q-learning with target policy smoothing (eqs. 10 and 14)."""
        cfg, targets = self.cfg, self.targets
        with torch.no_grad():
            noise = cfg.target_noise * self._rng.standard_normal(tuple(action.shape), dtype=np.float32)
            noise = torch.from_numpy(noise.clip(-cfg.noise_clip, cfg.noise_clip)).to(self._device)
            next_action = (targets["actor"](next_obs) + noise).clamp(-1, 1)
            values = [critic(torch.cat((next_obs, next_action), 1)) for critic in targets["critics"]]
            target = reward + discount * torch.minimum(*values).squeeze(1)
        pair = torch.cat((obs, action), 1)
        return sum(F.mse_loss(critic(pair).squeeze(1), target) for critic in self.critics)

    def actor_loss(self, obs: Tensor) -> Tensor:
        """Deterministic policy gradient through the first critic (eq. 2)."""
        value: Tensor = self.critics[0](torch.cat((obs, self.actor(obs)), 1))
        return -value.mean()

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self._optimizers[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def _follow(self) -> None:
        for target, source in ((self.targets["actor"], self.actor), (self.targets["critics"], self.critics)):
            for old, new in zip(target.parameters(), source.parameters(), strict=True):
                old.lerp_(new, self.cfg.tau)

    def state(self) -> State:
        """Return all that the next update depends on."""
        return {
            "policy": self.policy.state(),
            "critics": module_state(self.critics),
            "targets": module_state(self.targets),
            "optimizers": {name: optimizer_state(each) for name, each in self._optimizers.items()},
            "noise": get_rng_state(self._rng),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self.policy.load(state["policy"])
        load_module(self.critics, state["critics"])
        load_module(self.targets, state["targets"])
        for name, each in self._optimizers.items():
            load_optimizer(each, state["optimizers"][name])
        set_rng_state(self._rng, state["noise"])
        self.policy.version = self.num_updates = int(state["num_updates"])

    def messages(self) -> list[str]:
        """Return nothing: there are no helper processes."""
        return []

    def close(self) -> None:
        """Release nothing."""


def make(setup: Setup) -> TD3:
    """Return the algorithm for a run."""
    return TD3(setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> ModulePolicy:
    """Return the policy of a saved state."""
    return ModulePolicy.from_state(Actor, setup.spec, state["policy"], int(state["num_updates"]))


SPEC = AlgorithmSpec("td3", TD3Config, "replay", make, load_policy)
