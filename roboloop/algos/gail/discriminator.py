"""One discriminator for all adversarial methods: it learns from equal batches and relabels rewards at sample time.

Rewards say how much more a step is the expert's than the policy's. They are never stored: a batch is paid by the
present discriminator whenever it is drawn. The end of the world is paid too (``DiscriminatorConfig.ends``): the state
after it is one more input, whose reward is then counted for ever, so that dying and living on are judged alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roboloop.algos.gail import losses
from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.gail.losses import EpisodeCounts
from roboloop.algos.learner.optimizer import MAX_ADAM_STEP, Adam, FlatAdam
from roboloop.algos.learner.work import lay
from roboloop.algos.policy import ActionScale, in_bounds
from roboloop.core.errors import ConfigError
from roboloop.core.rng import derive, get_rng_state, set_rng_state, stream
from roboloop.core.shared_state import drawn_from
from roboloop.core.types import Array, EnvSpec, Metrics, State
from roboloop.nets.discriminator import DiscriminatorNet
from roboloop.nets.flat import Layout, clone, restore
from roboloop.nets.normalize import RunningNorm
from roboloop.nets.targets import TargetHead

FORGET = 0.99
"""Per update, of how often the policy's world has ended: lives get longer or shorter as it learns."""


class Steps(NamedTuple):
    """What a discriminator sees of some steps: ``[n, ...]`` of the policy, ``[K, n, ...]`` of the tasks' experts."""

    obs: Array
    action: Array
    ended: Array  # whether the world ended with the step; not if only the clock did


class Discriminator:
    """K logits over steps; ``update`` takes one gradient step, ``rewards`` pays."""

    def __init__(
        self,
        cfg: DiscriminatorConfig,
        spec: EnvSpec,
        experts: EpisodeCounts,
        gamma: float,
        seed: int,
        frame_stack: int = 1,
        tasks: Sequence[str] = (),
    ) -> None:
        cfg.check()
        if not 0 <= gamma < 1:
            raise ConfigError(f"gamma must be below 1 for adversarial rewards, not {gamma}: an end is paid for ever")
        self.cfg, self._gamma, self._experts = cfg, gamma, experts
        self._tasks = tasks
        self.num_tasks = len(experts.steps)
        self._obs_dim = frame_stack * math.prod(spec.obs_shape)
        self._spec, self._head = spec, TargetHead(spec.action_choices or (0,) * spec.action_dim)
        inputs = self._obs_dim + self._head.width * cfg.use_action + (cfg.ends == "absorbing")
        with drawn_from(derive(seed, "discriminator-init")):
            self._net = DiscriminatorNet(inputs, cfg.hidden, self.num_tasks, cfg.spectral_norm)
        layout = Layout({name: tuple(parameter.shape) for name, parameter in self._net.named_parameters()})
        flat, grad, m, v = (layout.zeros() for _ in range(4))
        lay(self._net, layout.views(flat), keep=True)
        self._grad, self._grads, self._m, self._v = grad, layout.views(grad), layout.views(m), layout.views(v)
        self._step = torch.zeros(())
        self._adam = FlatAdam(flat, m, v, self._step, Adam(cfg.lr, cfg.weight_decay))
        self._norm, self._scale = RunningNorm(self._obs_dim), ActionScale(spec)
        self._rng = stream(seed, "discriminator-mix")
        self._policy = EpisodeCounts(np.zeros(1), np.zeros(1))
        self.num_updates = 0

    def update(self, policy: Steps, experts: Steps, held_out: Steps | None) -> Metrics:
        """Take one step on equally many rows of the policy and of each expert; judge it on experts it never saw."""
        if experts.obs.shape[:2] != (self.num_tasks, len(policy.obs)):
            shape = experts.obs.shape[:2]
            raise ConfigError(f"{len(policy.obs)} steps of the policy need as many of {self.num_tasks} tasks: {shape}")
        self._count(policy)
        rows = [np.reshape(steps.obs, (-1, self._obs_dim)) for steps in (policy, experts)]
        self._norm.update(np.concatenate(rows))
        of_policy, of_experts = self._inputs(policy), self._inputs(experts)
        judged = {} if held_out is None else self._judged(of_policy, self._inputs(held_out))
        self._net.follow()
        loss, penalty = self._loss(of_policy, of_experts, policy.ended, experts.ended)
        total = loss + self.cfg.gradient_penalty * penalty
        for kept, found in zip(
            self._grads.values(), torch.autograd.grad(total, [*self._net.parameters()]), strict=True
        ):  # fmt: skip
            kept.copy_(found)
        self.num_updates += 1
        self._step.fill_(min(self.num_updates, MAX_ADAM_STEP))
        self._adam.update(losses.clipped(self._grad, self.cfg.max_grad_norm))
        return {"disc_loss": loss.item(), "disc_penalty": penalty.item(), **judged}

    def _count(self, policy: Steps) -> None:
        steps, ends = np.array([len(policy.ended)]), np.array([policy.ended.sum()])
        self._policy = EpisodeCounts(FORGET * self._policy.steps + steps, FORGET * self._policy.ends + ends)

    def _loss(self, policy: Tensor, experts: Tensor, policy_ended: Array, expert_ended: Array) -> tuple[Tensor, Tensor]:
        """Return the logistic loss, and the penalty of slopes; what comes after an end is one row with its weight."""
        of_policy, of_experts = self._net.logits(policy), self._net.own_logits(experts)
        rows = policy.shape[0]
        policy_weight, expert_weight = torch.full((1, rows), 1.0 / rows), torch.full((self.num_tasks, rows), 1.0 / rows)
        if self.cfg.ends == "absorbing":
            after = self._after().unsqueeze(1)
            of_policy, of_experts = torch.cat((of_policy, after), 1), torch.cat((of_experts, after), 1)
            policy_weight = _with_end(policy_weight, self._policy.ends / self._policy.steps)
            expert_weight = _with_end(expert_weight, self._experts.ends / self._experts.steps)
            absorbing = self._absorbing()
            policy = torch.where(torch.from_numpy(policy_ended)[:, None], absorbing, policy)
            experts = torch.where(torch.from_numpy(expert_ended)[:, :, None], absorbing, experts)
        loss = losses.logistic_loss(of_policy, of_experts, policy_weight, expert_weight)
        if not self.cfg.gradient_penalty:
            return loss, torch.zeros(())
        lot = _aligned(self._rng.random(experts.shape, dtype=np.float32))
        between = losses.interpolated(policy, experts, lot).requires_grad_()
        # of each task's own logit between its own rows: tasks do not lean on each other's slopes
        own = self._net.own_logits(between).sum()
        (slopes,) = torch.autograd.grad(own, between, create_graph=True)
        return loss, losses.slope_penalty(slopes)

    def _judged(self, policy: Tensor, held_out: Tensor) -> dict[str, float]:
        """Return how well rows are told apart that no gradient has been taken on, and whether it knows how well."""
        with torch.no_grad():
            of_policy, of_experts = self._net.logits(policy), self._net.own_logits(held_out)
        by_task = zip(self._tasks, of_policy, of_experts, strict=False)
        return {
            "disc_accuracy": losses.accuracy(of_policy, of_experts),
            "disc_calibration_error": losses.calibration_error(of_policy, of_experts),
            "d_score": float(torch.sigmoid(of_policy).mean()),
            "d_score_held_out": float(torch.sigmoid(of_experts).mean()),
            **{f"disc_accuracy/{task}": losses.accuracy(policy, experts) for task, policy, experts in by_task},
        }

    def _inputs(self, steps: Steps) -> Tensor:
        """Return ``[..., inputs]``: normalised observations, actions in units, and that this is not the end."""
        lead = steps.ended.shape
        parts = [self._norm(np.asarray(steps.obs, np.float32).reshape(-1, self._obs_dim)).reshape(*lead, -1)]
        if self.cfg.use_action:
            parts.append(self._actions(steps.action).reshape(*lead, -1))
        if self.cfg.ends == "absorbing":
            parts.append(np.zeros((*lead, 1), np.float32))
        return _aligned(np.concatenate(parts, axis=-1))

    def _actions(self, action: Array) -> Array:
        """Return ``[N, width]``: what the environment made of actions, choices as one-hot.

        Without the bounds it would be enough to look for what only a policy does, ask for more than there is.
        """
        taken = in_bounds(np.asarray(action, np.float32).reshape(-1, self._spec.action_dim), self._spec)
        encoded: Array = self._head.encode(torch.from_numpy(self._scale.to_unit(taken))).numpy()
        return encoded

    def _absorbing(self) -> Tensor:
        """Return the input that stands for all time after an end."""
        row = torch.zeros(self._net.inputs)
        row[-1] = 1.0
        return row

    def _after(self) -> Tensor:
        """Return the logits ``[K]`` of the time after an end."""
        return self._net.logits(self._absorbing()[None])[:, 0]

    def logits(self, steps: Steps) -> Tensor:
        """Return the logits ``[K, n]`` of steps ``[n, ...]``, without what is paid for lives and ends."""
        with torch.no_grad():
            return self._net.logits(self._inputs(steps))

    def rewards(self, obs: Array, action: Array, ended: Array) -> Array:
        """Return what every task pays for steps ``[n, ...]``, float32 ``[K, n]``."""
        form = self.cfg.reward
        with torch.no_grad():
            paid = losses.reward_of(self.logits(Steps(obs, action, ended)), form)
            if self.cfg.ends == "absorbing":
                after = losses.after_the_end(losses.reward_of(self._after(), form), self._gamma)
                paid = paid + torch.from_numpy(ended.astype(np.float32)) * after[:, None]
        rewards: Array = paid.numpy()
        if self.cfg.ends == "alive":
            offset = losses.alive_offset(self._experts, self._policy)
            rewards = rewards + offset[:, None].astype(np.float32)
        return rewards

    def state(self) -> State:
        """Return everything the next update depends on, as copies."""
        return {
            "net": clone(self._net.state_dict()),
            "adam": {"m": clone(self._m), "v": clone(self._v)},
            "norm": self._norm.state(),
            "rng": get_rng_state(self._rng),
            "policy_lives": list(self._policy),
            "num_updates": self.num_updates,
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned: the next update is then the one that would have come."""
        restore(self._net.state_dict(), state["net"], "discriminator")
        restore(self._m, state["adam"]["m"], "discriminator m")
        restore(self._v, state["adam"]["v"], "discriminator v")
        self._norm.load(state["norm"])
        set_rng_state(self._rng, state["rng"])
        self._policy = EpisodeCounts(*(np.array(count) for count in state["policy_lives"]))
        self.num_updates = int(state["num_updates"])


def _aligned(values: Array) -> Tensor:
    """Return a copy where torch puts it: BLAS results may depend on alignment, and numpy's differs from run to run."""
    return torch.from_numpy(values).clone()


def _with_end(weight: Tensor, rate: Array) -> Tensor:
    """Return the weights of rows ``[K, n]`` beside one for the time after an end, which each life has once."""
    share = torch.from_numpy(rate.astype(np.float32))[:, None]
    return torch.cat((weight, share), 1) / (1.0 + share)
