"""Teachers of guided play: they say what the transitions of a batch are worth to each of K tasks, when it is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from roboloop.algos.gail.discriminator import Discriminator, Steps
from roboloop.algos.guided.config import AdversarialSettings, ExampleSettings
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, Batch, Metrics, State, Stateful
from roboloop.data.experts import ExpertBatch, ExpertBuffer

Formula = Callable[[Array, Array, Array], Array]
"""From observations, actions and successors to rewards ``[N, K]``."""


class Teacher(Stateful, Protocol):
    """What each task learns from, and how much of it."""

    num_rows: int
    """Transitions of the replay that it wants for an update."""

    @property
    def value_caps(self) -> Sequence[float]:
        """What values of each task may be at most; empty = anything."""
        ...

    def relabel(self, batch: Batch) -> tuple[Batch, Metrics]:
        """Return what each task is to learn from, ``[K, n, ...]``, and what it learned itself."""
        ...

    def on_episode_end(self, learned: Metrics) -> None:
        """Take note of what came of the update."""
        ...


@runtime_checkable
class RewardSource(Protocol):
    """A teacher that can say what any transition is worth."""

    def rewards(self, batch: Batch) -> Array:
        """Return what every task pays for transitions ``[n, ...]`` now, float32 ``[K, n]``."""
        ...


class _Unbounded:
    """What a teacher has that bounds no values."""

    value_caps: Sequence[float] = ()

    def on_episode_end(self, learned: Metrics) -> None:
        """Take no note."""


class EnvReward(_Unbounded):
    """The environment's own formulas of its tasks."""

    def __init__(self, tasks: Sequence[str], formula: Formula, num_rows: int) -> None:
        self.num_rows = num_rows
        self._tasks, self._formula = tasks, formula

    def rewards(self, batch: Batch) -> Array:
        """Return what the formulas pay."""
        return np.ascontiguousarray(self._formula(batch.obs, batch.action, batch.next_obs).T)

    def relabel(self, batch: Batch) -> tuple[Batch, Metrics]:
        """Return the batch for each task."""
        paid = self.rewards(batch)
        return for_each_task(batch, paid), paid_metrics(self._tasks, paid)

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class DiscriminatorReward(_Unbounded):
    """A discriminator for each task, which learns from its expert; some of a batch's rows are the experts' own."""

    def __init__(
        self, cfg: AdversarialSettings, tasks: Sequence[str], discriminator: Discriminator, experts: ExpertBuffer
    ) -> None:
        self.num_rows = cfg.batch_size
        self._cfg, self._tasks, self._discriminator, self._experts = cfg, tasks, discriminator, experts

    @property
    def expert_rows(self) -> int:
        """How many rows of the next batch are experts'."""
        share = self._cfg.expert_fraction * self._cfg.expert_decay**self._discriminator.num_updates
        return int(share * self.num_rows)

    def relabel(self, batch: Batch) -> tuple[Batch, Metrics]:
        """Learn to tell the policy from the experts; pay the batch, and experts in the place of its first rows."""
        expert_rows, held_out = self.expert_rows, self._experts.held_out(self.num_rows)
        metrics = self._discriminator.update(
            Steps(batch.obs, batch.action, batch.discount == 0),
            steps_of(self._experts.sample(self.num_rows)),
            None if held_out is None else steps_of(held_out),
        )
        if expert_rows:
            of_each = -(-expert_rows // len(self._tasks))
            drawn = self._experts.sample(of_each, end_share=0.0)
            overwrite(batch, drawn, expert_rows, self._cfg.sac.gamma)
        paid = self.rewards(batch)
        return for_each_task(batch, paid), {**metrics, **paid_metrics(self._tasks, paid)}

    def rewards(self, batch: Batch) -> Array:
        """Return what the discriminators pay now; the environment's own reward is not looked at."""
        return self._discriminator.rewards(batch.obs, batch.action, batch.discount == 0)

    def state(self) -> State:
        """Return discriminator and draws."""
        return {"discriminator": self._discriminator.state(), "experts": self._experts.state()}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._discriminator.load(state["discriminator"])
        self._experts.load(state["experts"])


class ExampleReward:
    """States in which a task is done are paid, what the policy did costs as much; values may be held to the examples'.

    An example is its own successor, so it is worth success for ever. Its action is the policy's own: none is known.
    """

    def __init__(
        self, cfg: ExampleSettings, tasks: Sequence[str], experts: ExpertBuffer, seed: int, shards: int
    ) -> None:
        self.num_rows = cfg.batch_size - cfg.num_examples
        self._cfg, self._tasks, self._experts, self._shards = cfg, tasks, experts, shards
        self._noise = experts.example_deviation * cfg.example_noise
        self._rng = stream(seed, "example-noise")
        self._top = cfg.sac.reward_scale / (1.0 - cfg.sac.gamma)
        self._values = [deque[float](maxlen=cfg.penalty_window) for _ in tasks]

    @property
    def value_caps(self) -> Sequence[float]:
        """The median of what the examples of each task were worth of late; before that is known, success for ever."""
        if not self._cfg.penalty:
            return ()
        return [float(np.median(values)) if values else self._top for values in self._values]

    def relabel(self, batch: Batch) -> tuple[Batch, Metrics]:
        """Return examples and transitions: of each task in every shard, examples come first."""
        cfg, num_tasks = self._cfg, len(self._tasks)
        examples = self._experts.examples(cfg.num_examples)
        lead = (num_tasks, cfg.num_examples)
        columns = Batch(
            obs=self._beside(self._noisy(examples), batch.obs),
            action=self._beside(np.zeros((*lead, *batch.action.shape[1:]), np.float32), batch.action),
            reward=self._beside(np.ones(lead, np.float32), np.full_like(batch.reward, -1.0)),
            next_obs=self._beside(self._noisy(examples), batch.next_obs),
            # ends are bootstrapped through: whether they are a success, only examples can say
            discount=self._beside(*(np.full(n, cfg.sac.gamma, np.float32) for n in (lead, len(batch.discount)))),
        )
        return columns, {f"value_cap/{t}": cap for t, cap in zip(self._tasks, self.value_caps, strict=False)}

    def _noisy(self, examples: Array) -> Array:
        noise = self._rng.standard_normal(examples.shape, dtype=np.float32)
        noisy: Array = examples + noise * self._noise
        return noisy

    def _beside(self, examples: Array, replay: Array) -> Array:
        """Return ``[K, n, ...]`` of examples ``[K, m, ...]`` and rows that all tasks share, both spread over shards."""
        num_tasks, shards, rest = len(examples), self._shards, replay.shape[1:]
        shared = np.broadcast_to(replay, (num_tasks, *replay.shape)).reshape(num_tasks, shards, -1, *rest)
        joined: Array = np.concatenate((examples.reshape(num_tasks, shards, -1, *rest), shared), axis=2)
        return joined.reshape(num_tasks, -1, *rest)

    def on_episode_end(self, learned: Metrics) -> None:
        """Remember what the examples were worth."""
        for task, values in zip(self._tasks, self._values, strict=True):
            values.append(learned[f"example_value/{task}"])

    def state(self) -> State:
        """Return draws, noise, and the values that caps are made of."""
        return {
            "experts": self._experts.state(),
            "rng": get_rng_state(self._rng),
            "values": [list(values) for values in self._values],
        }

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        self._experts.load(state["experts"])
        set_rng_state(self._rng, state["rng"])
        for values, saved in zip(self._values, state["values"], strict=True):
            values.clear()
            values.extend(map(float, saved))


def for_each_task(batch: Batch, paid: Array) -> Batch:
    """Return a batch once for each task, ``[K, n, ...]``, with what each of them pays; nothing is copied."""
    shared = {name: np.broadcast_to(column, (len(paid), *column.shape)) for name, column in batch._asdict().items()}
    return Batch(**{**shared, "reward": paid})


def paid_metrics(tasks: Sequence[str], paid: Array) -> dict[str, float]:
    """Return what tasks paid on average."""
    return {"reward": float(paid.mean())} | {f"reward/{t}": float(r.mean()) for t, r in zip(tasks, paid, strict=True)}


def steps_of(experts: ExpertBatch) -> Steps:
    """Return what a discriminator sees of experts."""
    return Steps(experts.obs, experts.action, experts.terminated)


def overwrite(batch: Batch, experts: ExpertBatch, rows: int, gamma: float) -> None:
    """Put experts' transitions in the place of a batch's first rows, in turns of all tasks, the main one first."""

    def in_turns(column: Array) -> Array:
        return column.swapaxes(0, 1).reshape(-1, *column.shape[2:])[:rows]

    for name in ("obs", "action", "next_obs"):
        getattr(batch, name)[:rows] = in_turns(getattr(experts, name))
    batch.discount[:rows] = gamma * ~in_turns(experts.terminated)
