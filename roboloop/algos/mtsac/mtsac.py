"""Soft actor-critic for a set of tasks: rows and a temperature of each task's own (docs/algorithms/mtsac.md).

A shard's rows lie task by task, equally many of each, so ``[K, n]`` sees them by task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Loss
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.multitask import reward_view, tasks_of
from roboloop.algos.sac.sac import SAC
from roboloop.algos.spec import Setup
from roboloop.core.types import EnvSpec, State
from roboloop.nets.modules import mlp, tanh_gaussian
from roboloop.nets.soft_modules import SoftModules, SoftSpec, evenness
from roboloop.nets.task_heads import with_heads


class MultiTaskSAC(SAC):
    """SAC whose networks share what the config says, with a temperature for each task."""

    cfg: MTSACConfig

    def build(self) -> None:
        """Make the modules."""
        self.tasks = tasks_of(self.cfg, self.spec, self.frame_stack)
        self.num_tasks = len(self.tasks)
        self.heads = self.num_tasks if self.cfg.net == "heads" else 1
        self.most_metrics += 2 * self.num_tasks
        super().build()
        log_alphas = self.log_alpha.detach().repeat(self.num_tasks)
        self.log_alpha = nn.Parameter(log_alphas, requires_grad=self.cfg.alpha is None)

    def net(self, more: int, outputs: int) -> nn.Module:
        """Return a network from an observation, which ends with the task, and an action or nothing."""
        cfg, inputs = self.cfg, self.obs_dim + more
        if cfg.net == "plain":
            return mlp((inputs, *cfg.hidden, outputs), norm="layer" if cfg.layer_norm else None)
        if cfg.net == "heads":
            return with_heads(self.num_tasks, (inputs, *cfg.hidden), (*cfg.head_hidden, outputs), cfg.layer_norm)
        return SoftModules(SoftSpec(
            self.obs_dim - self.num_tasks, self.num_tasks, more, outputs, cfg.modules, cfg.module_layers,
            cfg.module_width, cfg.hidden, cfg.gate_hidden, cfg.routing == "hard",
        ))  # fmt: skip

    def of_rows(self, by_task: Tensor, rows: int) -> Tensor:
        """Return the number of each row's task."""
        return by_task.repeat_interleave(rows // self.num_tasks)

    def by_task(self, rows: Tensor) -> Tensor:
        """Return rows as ``[K, n, ...]``."""
        return rows.reshape(self.num_tasks, -1, *rows.shape[1:])

    def weighed(self, losses: Tensor) -> Tensor:
        """Return losses ``[..., rows]`` times K softmax(-log alpha) of each row's task, whose mean is one.

        These are the weights of Soft-Module's code. The paper's softmax(-alpha) hardly tells small temperatures apart.
        """
        if self.cfg.task_weights == "equal":
            return losses
        weights = self.num_tasks * (-self.log_alpha.detach()).softmax(0)
        return losses * self.of_rows(weights, losses.shape[-1])

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Half the squared soft Bellman error with each row's own temperature (eqs. 2, 3 and 5)."""
        rows = len(batch.reward)
        with torch.no_grad():
            action, log_prob = self.draw(batch.next_obs, noise.next)
            next_q = self.values(self.target_critics, batch.next_obs, action).amin(0)
            bonus = self.of_rows(self.log_alpha.exp(), rows) * log_prob
            target = self.paid(batch) + batch.discount * (next_q - bonus)
        q = self.values(self.critics, batch.obs, batch.action)
        errors = 0.5 * (q - target).square()
        return self.weighed(errors).mean(1).sum(), {"critic_loss": errors.mean(1).sum(), "q_mean": q.mean()}

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Eq. 9 with each row's own temperature, and eq. 18 for each temperature."""
        outputs, said = self.actor_outputs(batch.obs)
        action, log_prob = tanh_gaussian(outputs, noise.now)
        q = self.values(self.critics, batch.obs, action)
        loss, more = self.actor_terms(q, log_prob)
        return loss, {**more, **said}

    def actor_outputs(self, obs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the actor's network says, and of soft modules how evenly they are mixed."""
        if not isinstance(self.actor, SoftModules):
            return self.actor(obs), {}
        outputs, _, chances = self.actor.routed(obs)
        with torch.no_grad():
            return outputs, {f"evenness/layer{i}": evenness(p).mean() for i, p in enumerate(chances)}

    def actor_terms(self, q: Tensor, log_prob: Tensor) -> Loss:
        """Return the loss of actor and temperatures for fresh actions' values ``[E, N]`` and densities."""
        alphas, entropies = self.log_alpha.exp().detach(), -self.by_task(log_prob).mean(1)
        of_rows = self.of_rows(alphas, len(log_prob)) * log_prob - q.amin(0)
        said = {"actor_loss": of_rows.mean(), "entropy": entropies.mean(), "alpha": alphas.mean()}
        for task, alpha, entropy in zip(self.tasks, alphas.unbind(), entropies.unbind(), strict=True):
            said |= {f"alpha/{task}": alpha, f"entropy/{task}": entropy}
        loss = self.weighed(of_rows).mean()
        if self.cfg.alpha is None:
            loss = loss + (self.log_alpha * (entropies.detach() - self.target_entropy)).sum()
        return loss, said


def make_mtsac(cfg: MTSACConfig, spec: EnvSpec, frame_stack: int, seed: int, device: str = "cpu") -> ReplayLearner:
    """Return multi-task SAC."""
    view = reward_view(cfg, len(spec.own_tasks))
    return ReplayLearner(MultiTaskSAC, cfg, spec, frame_stack, seed, device, view)


def make(setup: Setup) -> ReplayLearner:
    """Return multi-task SAC for a run."""
    return make_mtsac(setup.config, setup.spec, setup.frame_stack, setup.seed, setup.device)


def load_policy(setup: Setup, state: State) -> LearnerPolicy:
    """Return the policy of a saved state."""
    return LearnerPolicy.from_state(MultiTaskSAC(setup.config, setup.spec, setup.frame_stack), state)
