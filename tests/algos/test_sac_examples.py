"""SAC with examples of success among its rows: who learns what from them, equal processes, tasks apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.guided.example_sac import ExampleSAC, ExampleSACConfig
from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import make_mtsac
from roboloop.core.types import Batch
from roboloop.nets.flat import Views
from tests.algos.learners import gradients, noise
from tests.algos.test_multitask_sac import SMALL, SPEC, K, batches, is_a_heads
from tests.algos.test_sac import assert_same_bits

M = 2  # examples of each task in each of two shards, of four rows
TERMS: dict[str, dict[str, Any]] = {"sqil": {}, "vpace": {"penalty": 10.0}, "rce": {"loss": "classifier"}}
CAPS = [0.05, 0.0, -0.05]
each_loss = pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())


def sac_with(terms: dict[str, Any], **changes: Any) -> ReplayLearner:
    own = {**vars(dataclasses.replace(SMALL, **changes)), "num_examples": 2 * M, **terms}
    sac = ReplayLearner(ExampleSAC, ExampleSACConfig(**own), SPEC, 1, seed=0)
    sac.trainer.views["bounds.cap"].copy_(torch.tensor(CAPS))
    return sac


def plain_sac(**changes: Any) -> ReplayLearner:
    return make_mtsac(dataclasses.replace(SMALL, **changes), SPEC, 1, seed=0)


def is_example() -> Any:
    return np.tile(np.arange(4) < M, 2 * K)


def of(net: str, found: Views) -> Views:
    return {name: grad for name, grad in found.items() if name.startswith(net)}


def differs(a: Views, b: Views) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


def fresh_actions(sac: ReplayLearner, batch: Batch) -> torch.Tensor:
    """Return what the policy does in all rows, ``[rows, A]`` in units, by the noise of the last batch."""
    parts = batch.obs.reshape(K, 2, 4, -1).swapaxes(0, 1)
    learner, drawn = sac.trainer.pool.own_shard.losses["critic_loss"]._loss.__self__, []
    for part, now in zip(parts, noise(sac, "now"), strict=True):
        drawn.append(learner.draw(torch.from_numpy(part.reshape(12, -1)), now)[0].detach().view(K, 4, 2))
    return torch.stack(drawn, 1).reshape(24, 2)


@each_loss
def test_actors_learn_nothing_from_examples_and_critics_do(terms: dict[str, Any]) -> None:
    sac, batch = sac_with(terms), next(batches())
    before = gradients(sac, batch)
    moved = batch.obs + np.where(is_example(), 0.5, 0.0).astype(np.float32)[:, None] * (np.arange(8) < 5)
    after = gradients(sac, batch._replace(obs=moved.astype(np.float32)))
    assert not differs(of("actor", before), of("actor", after))
    assert len(differs(of("critics", before), of("critics", after))) == len(of("critics", before))


@each_loss
def test_what_was_done_in_examples_does_not_count(terms: dict[str, Any]) -> None:
    sac, batch = sac_with(terms), next(batches())
    action = np.where(is_example()[:, None], batch.action * 0, batch.action)
    assert not differs(gradients(sac, batch), gradients(sac, batch._replace(action=action.astype(np.float32))))


def test_critics_judge_examples_with_actions_of_the_present_policy_and_as_rows_like_others() -> None:
    sac, batch = sac_with(TERMS["sqil"]), next(batches())
    critics = of("critics", gradients(sac, batch))
    fresh = sac._scale.to_env(fresh_actions(sac, batch).numpy())
    action = np.where(is_example()[:, None], fresh, batch.action)
    plain = gradients(plain_sac(), batch._replace(action=action.astype(np.float32)))
    for name, gradient in critics.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-6)


def test_the_actor_learns_as_from_the_other_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sac, batch = sac_with(TERMS["sqil"]), next(batches())
    actor = of("actor", gradients(sac, batch))
    alone, keep = plain_sac(batch_size=12), ~is_example()
    of_others = noise(sac, "now").view(2, K, 4, 2)[:, :, M:].reshape(2, 6, 2)
    monkeypatch.setattr(alone.trainer, "draw_noise", lambda rng: noise(alone, "now").copy_(of_others))
    found = gradients(alone, Batch(*(column[keep] for column in batch)))
    for name, gradient in actor.items():
        torch.testing.assert_close(gradient, found[name], rtol=1e-4, atol=1e-6)


@each_loss
def test_examples_of_one_task_move_no_other_tasks_head(terms: dict[str, Any]) -> None:
    sac, batch = sac_with(terms), next(batches())
    before = gradients(sac, batch)
    of_second = is_example() & (np.arange(24) // 8 == 1)
    obs = batch.obs + (0.5 * of_second[:, None] * (np.arange(8) < 5)).astype(np.float32)
    for name, gradient in gradients(sac, batch._replace(obs=obs)).items():
        if is_a_heads(name):
            changed = [not torch.equal(a, b) for a, b in zip(gradient, before[name], strict=True)]
            assert changed == [False, True, False]


def test_a_cap_bounds_the_other_rows_of_its_own_task_only() -> None:
    sac, batch = sac_with(TERMS["vpace"]), next(batches())
    before = gradients(sac, batch)["critics.0.6.bias"]
    sac.trainer.views["bounds.cap"][1] = -5.0
    after = gradients(sac, batch)["critics.0.6.bias"]
    assert [not torch.equal(a, b) for a, b in zip(after, before, strict=True)] == [False, True, False]


def test_examples_are_bounded_by_success_for_ever_and_other_rows_by_their_own_tasks_cap() -> None:
    learner = ExampleSAC(ExampleSACConfig(**vars(SMALL), num_examples=2 * M, penalty=5.0), SPEC)
    learner.top = 10.0
    learner.bounds.cap.copy_(torch.tensor([2.0, -1.0, 0.0]))
    q = torch.tensor([[9.0, 12.0, 3.0, 1.0, 9.0, -12.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]])
    batch = Rows(reward=torch.zeros(12), discount=torch.zeros(12))
    losses, values, said = learner.judged(q, torch.zeros(1, 12), torch.zeros(12), batch)
    outside = torch.tensor([[0.0, 2.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]).square()
    torch.testing.assert_close(losses, 0.5 * q.square() + 0.5 * 5.0 * outside)
    assert said["value_penalty"].item() == pytest.approx(0.5 * 5.0 * (4 + 1 + 4 + 1) / 12)
    assert values is q


def test_a_classifiers_values_are_probabilities() -> None:
    learner = ExampleSAC(ExampleSACConfig(**vars(SMALL), num_examples=2 * M, loss="classifier"), SPEC)
    obs, action = torch.randn(12, 8), torch.randn(12, 2)
    logits = learner.critics(torch.cat((obs, action), 1)).squeeze(2)
    torch.testing.assert_close(learner.values(learner.critics, obs, action), logits.sigmoid())


@each_loss
def test_two_processes_give_the_bits_of_one_and_state_continues(terms: dict[str, Any]) -> None:
    alone, together = (sac_with(terms, processes=p) for p in (1, 2))
    together.wait_until_ready()
    source = batches()
    try:
        for _ in range(3):
            batch = next(source)
            assert alone.update(batch) == together.update(batch)
        later = sac_with(terms)
        later.load(together.state())
        batch = next(source)
        assert alone.update(batch) == later.update(batch)
        assert_same_bits(alone.state()["policy"], later.state()["policy"])
    finally:
        together.close()


def test_examples_for_ever_are_worth_what_the_bounds_say() -> None:
    """Two states that stay what they are: one is worth success for ever, the other never to succeed."""
    cfg = MTSACConfig(
        hidden=(32,), head_hidden=(32,), batch_size=96, gamma=0.5, tau=0.1, critic_lr=3e-3, alpha=0.0, processes=1,
        reward_scale=0.5,
    )  # fmt: skip
    own = ExampleSACConfig(**vars(cfg), num_examples=16, penalty=10.0)
    sac = ReplayLearner(ExampleSAC, own, SPEC, 1, seed=0)  # values are at most success for ever, which is 1
    marks = np.tile(np.arange(16) < 8, 2 * K)
    one_hot = np.repeat(np.eye(K, dtype=np.float32), 32, axis=0)
    obs = np.concatenate((np.where(marks, 1.0, -1.0)[:, None] * np.ones((96, 5)), one_hot), 1).astype(np.float32)
    reward = np.where(marks, 1.0, -1.0).astype(np.float32)
    rng = np.random.default_rng(0)
    for _ in range(800):
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (96, 2)).astype(np.float32)
        metrics = sac.update(Batch(obs, action, reward, obs, np.full(96, 0.5, np.float32)))
    for task in SPEC.tasks:
        assert metrics[f"example_value/{task}"] == pytest.approx(1.0, abs=0.05)
    assert metrics["q_mean"] == pytest.approx(0.0, abs=0.05)  # half of the rows at 1, half at -1
    assert metrics["value_penalty"] < 1e-3
