"""SAC with examples of success among its rows: who learns what from them, equal processes, tasks apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.mtsac.objectives import ExampleTerms
from roboloop.core.types import Batch
from tests.algos.test_multitask_sac import SMALL, SPEC, K, batches
from tests.algos.test_sac import assert_same_bits

M = 2  # examples of each task in each of two shards, of four rows
TERMS = {
    "sqil": ExampleTerms(M),
    "vpace": ExampleTerms(M, penalty=10.0),
    "rce": ExampleTerms(M, loss="classifier"),
}
CAPS = [0.05, 0.0, -0.05]


def sac_with(terms: ExampleTerms, **changes: Any) -> MultiTaskSAC:
    return MultiTaskSAC(dataclasses.replace(SMALL, **changes), SPEC, 1, seed=0, examples=terms)


def is_example() -> Any:
    return np.tile(np.arange(4) < M, 2 * K)


def gradients(
    sac: MultiTaskSAC, batch: Batch, phases: tuple[str, ...] = ("critic_gradients", "actor_gradients")
) -> Any:
    """Return the gradients of critics and actor with the noise of a fresh learner; nothing moves."""
    sac._noise_rng = MultiTaskSAC(SMALL, SPEC, 1, seed=0)._noise_rng
    sac._host["value_cap"][:] = CAPS
    sac._load_batch(batch)
    sac._pool.run(phases)
    shape, mem = sac._shape, sac._mem
    critics = {name: g.clone() for name, g in shape.critics.views(mem["critics_grad"].sum(0)).items()}
    actor = {name: g.clone() for name, g in shape.actor.views(mem["actor_grad"].sum(0)).items()}
    return critics, actor


def differs(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
def test_actors_learn_nothing_from_examples_and_critics_do(terms: ExampleTerms) -> None:
    sac, batch = sac_with(terms), next(batches())
    critics, actor = gradients(sac, batch)
    moved = batch.obs + np.where(is_example(), 0.5, 0.0).astype(np.float32)[:, None] * (np.arange(8) < 5)
    other_critics, other_actor = gradients(sac, batch._replace(obs=moved.astype(np.float32)))
    assert not differs(actor, other_actor)
    assert len(differs(critics, other_critics)) == len(critics)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
def test_critics_judge_examples_with_actions_of_the_present_policy(terms: ExampleTerms) -> None:
    sac, batch = sac_with(terms), next(batches())
    critics, _ = gradients(sac, batch)
    action = np.where(is_example()[:, None], batch.action * 0, batch.action)
    same, _ = gradients(sac, batch._replace(action=action.astype(np.float32)))
    assert not differs(critics, same)
    for shard in sac._pool._shards:
        judged = shard._x.view(K, 4, -1)[:, :M, SPEC.obs_shape[0] :]
        fresh = shard._drawn.action[:12].view(K, 4, -1)[:, :M]
        assert torch.equal(judged, fresh)


def test_without_a_penalty_they_are_rows_like_others_to_the_critics() -> None:
    sac, batch = sac_with(TERMS["sqil"]), next(batches())
    critics, _ = gradients(sac, batch)
    fresh = torch.cat([shard._drawn.action[:12].view(K, 1, 4, 2) for shard in sac._pool._shards], 1).reshape(-1, 2)
    action = np.where(is_example()[:, None], fresh.numpy() * sac._scale.half + sac._scale.center, batch.action)
    plain, _ = gradients(sac_with(ExampleTerms()), batch._replace(action=action.astype(np.float32)))
    for name, gradient in critics.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-4, atol=1e-6)


def test_the_actor_learns_as_from_the_other_rows_alone() -> None:
    with_examples, batch = sac_with(TERMS["sqil"]), next(batches())
    _, actor = gradients(with_examples, batch)
    alone = sac_with(ExampleTerms(), batch_size=12)
    keep = ~is_example()
    alone._load_batch(Batch(*(column[keep] for column in batch)))
    noise = with_examples._mem["noise_pair"].view(2, 2, K, 4, 2)[:, :, :, M:]
    alone._mem["noise_pair"].copy_(noise.reshape(2, 2, 6, 2))
    alone._pool.run(("critic_gradients", "actor_gradients"))
    found = alone._shape.actor.views(alone._mem["actor_grad"].sum(0))
    for name, gradient in actor.items():
        torch.testing.assert_close(gradient, found[name], rtol=1e-4, atol=1e-6)
    entropy = [sac._mem["entropy"].sum(0) for sac in (with_examples, alone)]
    torch.testing.assert_close(*entropy)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
def test_examples_of_one_task_move_no_other_tasks_head(terms: ExampleTerms) -> None:
    sac, batch = sac_with(terms), next(batches())
    critics, _ = gradients(sac, batch)
    of_second = is_example() & (np.arange(24) // 8 == 1)
    obs = batch.obs + (0.5 * of_second[:, None] * (np.arange(8) < 5)).astype(np.float32)
    after, _ = gradients(sac, batch._replace(obs=obs))
    for name, gradient in after.items():
        if gradient.ndim == 3 or ("bias" in name and gradient.ndim == 2):  # a head's
            changed = [not torch.equal(a, b) for a, b in zip(gradient, critics[name], strict=True)]
            assert changed == [False, True, False]


def test_a_cap_bounds_the_other_rows_of_its_own_task_only() -> None:
    sac, batch = sac_with(TERMS["vpace"]), next(batches())
    critics, _ = gradients(sac, batch)
    sac._host["value_cap"][:] = [CAPS[0], -5.0, CAPS[2]]
    sac._pool.run(("critic_gradients",))
    after = sac._shape.critics.views(sac._mem["critics_grad"].sum(0))
    changed = [not torch.equal(a, b) for a, b in zip(after["0.linear3.bias"], critics["0.linear3.bias"], strict=True)]
    assert changed == [False, True, False]


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS.keys())
def test_two_processes_give_the_bits_of_one_and_state_continues(terms: ExampleTerms) -> None:
    alone, together = (sac_with(terms, processes=p) for p in (1, 2))
    together.wait_until_ready()
    source = batches()
    try:
        for _ in range(3):
            batch = next(source)
            assert alone.update(batch, CAPS) == together.update(batch, CAPS)
        later = sac_with(terms)
        later.load(together.state())
        batch = next(source)
        assert alone.update(batch, CAPS) == later.update(batch, CAPS)
        assert_same_bits(alone.state()["policy"], later.state()["policy"])
    finally:
        together.close()


def test_examples_for_ever_are_worth_what_the_bounds_say() -> None:
    """Two states that stay what they are: one is worth success for ever, the other never to succeed."""
    cfg = MTSACConfig(
        hidden=(32,), head_hidden=(32,), batch_size=96, gamma=0.5, tau=0.1, critic_lr=3e-3, alpha=0.0, processes=1,
        reward_scale=0.5,
    )  # fmt: skip
    sac = MultiTaskSAC(cfg, SPEC, 1, seed=0, examples=ExampleTerms(8, penalty=10.0))
    marks = np.tile(np.arange(16) < 8, 2 * K)
    one_hot = np.repeat(np.eye(K, dtype=np.float32), 32, axis=0)
    obs = np.concatenate((np.where(marks, 1.0, -1.0)[:, None] * np.ones((96, 5)), one_hot), 1).astype(np.float32)
    reward = np.where(marks, 1.0, -1.0).astype(np.float32)
    rng = np.random.default_rng(0)
    for _ in range(800):
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (96, 2)).astype(np.float32)
        metrics = sac.update(Batch(obs, action, reward, obs, np.full(96, 0.5, np.float32)), [1.0] * K)
    for task in SPEC.tasks:
        assert metrics[f"example_value/{task}"] == pytest.approx(1.0, abs=0.05)
    assert metrics["q_mean"] == pytest.approx(0.0, abs=0.05)  # half of the rows at 1, half at -1
    assert metrics["value_penalty"] < 1e-3
