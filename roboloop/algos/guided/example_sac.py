"""Multi-task SAC with examples of success among its rows: VPACE, SQIL and RCE (docs/guided-play.md).

An example is a state in which a task is done. Its action is the policy's own, since none is known. Of each task's rows
in a shard, examples come first. Actors learn from the other rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from roboloop.algos.guided.config import ExampleSettings
from roboloop.algos.guided.example_losses import classifier_loss, success_odds, value_penalty
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.learner import Loss
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.nets.modules import tanh_gaussian


@dataclass(frozen=True)
class ExampleSACConfig(MTSACConfig):
    """Multi-task SAC's settings, and how examples are learned from."""

    num_examples: int = 0
    """Of each task in a batch."""
    loss: Literal["bellman", "classifier"] = "bellman"
    """What critics say: values, or how likely success is to come."""
    penalty: float = 0.0
    """Weight of values that no value can be."""

    @classmethod
    def of(cls, cfg: ExampleSettings, num_tasks: int) -> ExampleSACConfig:
        """Return what learns the tasks of a config."""
        sac = {**vars(cfg.sac), "batch_size": num_tasks * cfg.batch_size}
        return cls(**sac, num_examples=cfg.num_examples, loss=cfg.loss, penalty=cfg.penalty)


class ValueCaps(nn.Module):
    """What values of each task's rows may be at most, but for its examples; written between updates."""

    cap: Tensor

    def __init__(self, caps: Tensor) -> None:
        super().__init__()
        self.register_buffer("cap", caps)


class ExampleSAC(MultiTaskSAC):
    """What critics learn from examples, and what their outputs are worth to actors."""

    cfg: ExampleSACConfig

    def build(self) -> None:
        """Make the modules."""
        super().build()
        cfg = self.cfg
        self.num_examples = cfg.num_examples // cfg.shards
        self.most_metrics += self.num_tasks
        # no state can be worth more than success for ever
        self.top = cfg.reward_scale / (1.0 - cfg.gamma)
        self.bounds = ValueCaps(torch.full((self.num_tasks,), self.top))

    def examples(self, rows: Tensor) -> Tensor:
        """Return the rows that are examples, task by task."""
        return self.by_task(rows)[:, : self.num_examples].flatten(0, 1)

    def others(self, rows: Tensor) -> Tensor:
        """Return the rows that are not."""
        return self.by_task(rows)[:, self.num_examples :].flatten(0, 1)

    def values(self, critics: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        """Return what each critic says an action is worth: of a classifier, the chance of success."""
        q = super().values(critics, obs, action)
        return q.sigmoid() if self.cfg.loss == "classifier" else q

    def critic_loss(self, batch: Rows, noise: Rows) -> Loss:
        """What the config names, with fresh actions in the examples' states."""
        with torch.no_grad():
            fresh = self.draw(self.examples(batch.obs), self.examples(noise.now))[0]
            known = self.by_task(batch.action)[:, self.num_examples :]
            action = torch.cat((self.by_task(fresh), known), 1).flatten(0, 1)
            next_action, next_log_prob = self.draw(batch.next_obs, noise.next)
            next_q = super().values(self.target_critics, batch.next_obs, next_action)
        q = super().values(self.critics, batch.obs, action)
        losses, values, said = self.judged(q, next_q, next_log_prob, batch)
        said = {"critic_loss": losses.mean(1).sum(), "q_mean": values.mean(), **said}
        of_examples = self.by_task(values[0])[:, : self.num_examples].mean(1)
        said |= {f"example_value/{task}": v for task, v in zip(self.tasks, of_examples.unbind(), strict=True)}
        return self.weighed(losses).mean(1).sum(), said

    def judged(
        self, q: Tensor, next_q: Tensor, next_log_prob: Tensor, batch: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return losses and values ``[E, N]`` of the critics' outputs."""
        cfg, rows = self.cfg, q.shape[1]
        is_example = self.is_example(q)
        if cfg.loss == "classifier":
            odds = success_odds(next_q, batch.discount)
            return classifier_loss(q, odds, is_example, cfg.gamma), q.sigmoid(), {}
        bonus = self.of_rows(self.log_alpha.exp().detach(), rows) * next_log_prob
        target = self.paid(batch) + batch.discount * (next_q.amin(0) - bonus)
        bellman = 0.5 * (q - target).square()
        if not cfg.penalty:
            return bellman, q, {}
        # nor, as far as the critics know, can other states be worth more than the examples
        high = torch.where(is_example, self.top, self.of_rows(self.bounds.cap, rows))
        outside = cfg.penalty * value_penalty(q, -self.top, high)
        said = {"critic_loss": bellman.mean(1).sum(), "value_penalty": outside.mean(1).sum()}
        return bellman + outside, q, said

    def is_example(self, like: Tensor) -> Tensor:
        """Return for the rows of ``[E, N]`` whether they are examples."""
        per_task = like.shape[1] // self.num_tasks
        ones = torch.ones(self.num_tasks, self.num_examples, dtype=torch.bool, device=like.device)
        return pad(ones, (0, per_task - self.num_examples)).flatten()

    def actor_loss(self, batch: Rows, noise: Rows) -> Loss:
        """Multi-task SAC's, of the rows that are not examples."""
        obs = self.others(batch.obs)
        outputs, said = self.actor_outputs(obs)
        action, log_prob = tanh_gaussian(outputs, self.others(noise.now))
        loss, more = self.actor_terms(self.values(self.critics, obs, action), log_prob)
        return loss, {**more, **said}
