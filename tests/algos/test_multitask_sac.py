"""SAC for a set of tasks: maths by hand, what tasks share and what they do not, exact resume, equal processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.losses import actor_loss, actor_loss_gradient, task_weights, td_target
from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.mtsac.multitask import TaskScale
from roboloop.algos.mtsac.temperature import LearnedTemperature
from roboloop.algos.policy import ActorPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Batch, EnvSpec
from roboloop.nets.heads import sample, sample_gradient
from tests.algos.test_sac import act, assert_same_bits

K, N = 3, 4
TASKS = ("a", "b", "c")
SPEC = EnvSpec((5 + K,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 1.0), 100, tasks=TASKS, one_task_each=True)
SMALL = MTSACConfig(hidden=(16, 12), head_hidden=(8,), module_width=8, gate_hidden=(10, 6), batch_size=24, processes=1)
NETS = {
    "heads": SMALL,
    "plain": dataclasses.replace(SMALL, net="plain"),
    "soft": dataclasses.replace(SMALL, net="soft"),
    "deep": dataclasses.replace(SMALL, net="soft", modules=4, module_layers=4),
    "hard": dataclasses.replace(SMALL, net="soft", routing="hard"),
}


def one_hot(rows: int) -> Any:
    return np.repeat(np.eye(K, dtype=np.float32), rows // K, axis=0)


def batches(size: int = 24, seed: int = 0) -> Iterator[Batch]:
    """Yield random batches, task by task, for ever."""
    rng = np.random.default_rng(seed)
    while True:
        obs, next_obs = rng.normal(size=(2, size, 5)).astype(np.float32)
        obs, next_obs = (np.concatenate((o, one_hot(size)), 1) for o in (obs, next_obs))
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (size, 2)).astype(np.float32)
        yield Batch(obs, action, rng.normal(size=size).astype(np.float32), next_obs, np.full(size, 0.99, np.float32))


def test_each_rows_temperature_is_its_tasks() -> None:
    reward, discount = torch.ones(2), torch.tensor([0.5, 0.5])
    next_q, log_prob = torch.tensor([[10.0, 10.0], [12.0, 9.0]]), torch.tensor([2.0, 2.0])
    alpha = torch.tensor([0.5, 0.25])
    assert td_target(reward, discount, next_q, log_prob, alpha).tolist() == [5.5, 5.25]
    loss, metrics = actor_loss(next_q, log_prob, alpha, 2)
    assert loss.item() == ((0.5 * 2 - 10) + (0.25 * 2 - 9)) / 2
    assert metrics["entropy"].item() == -2.0


def test_the_gradient_of_the_actors_loss_with_a_temperature_per_row_equals_autograd() -> None:
    q, log_prob, alpha = torch.randn(2, 6, requires_grad=True), torch.randn(6, requires_grad=True), torch.rand(6)
    wanted_q, wanted_log_prob = torch.autograd.grad(actor_loss(q, log_prob, alpha, 12)[0], (q, log_prob))
    d_q, d_log_prob = actor_loss_gradient(q.detach(), alpha, 12)
    torch.testing.assert_close(d_q, wanted_q)
    torch.testing.assert_close(d_log_prob, wanted_log_prob)


def test_a_sample_pulls_back_a_gradient_of_each_row_as_it_does_one_of_all() -> None:
    drawn, d_action, d_log_prob = sample(torch.randn(6, 4), torch.randn(6, 2)), torch.randn(6, 2), torch.rand(6)
    found = sample_gradient(drawn, d_action, d_log_prob)
    for row, each in enumerate(d_log_prob.tolist()):
        torch.testing.assert_close(found[row], sample_gradient(drawn, d_action, each)[row])


def test_weights_fall_with_the_temperature_and_have_mean_one() -> None:
    assert task_weights([1.0, 1.0]) == [1.0, 1.0]
    weights = task_weights([0.1, 0.2, 0.4])
    assert weights == pytest.approx([12 / 7, 6 / 7, 3 / 7])
    logits = [-math.log(alpha) for alpha in (0.1, 0.2, 0.4)]
    assert weights == pytest.approx((3 * torch.tensor(logits).softmax(0)).tolist())


def test_rewards_are_divided_by_the_deviation_of_their_own_task() -> None:
    scale = TaskScale(2.0, 2)
    reward = np.array([0.0, 20.0, 0.0, 2.0], np.float32)
    np.testing.assert_allclose(scale(reward), [0.0, 40 / math.sqrt(100.01), 0.0, 4 / math.sqrt(1.01)], rtol=1e-6)
    other = TaskScale(2.0, 2)
    other.load(scale.state())
    assert np.array_equal(scale(reward), other(reward))


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
@pytest.mark.parametrize(
    "change", [{}, {"task_weights": "temperature", "normalize_reward": True, "normalize_obs": True}, {"alpha": 0.1}]
)
def test_state_and_load_continue_bit_for_bit(cfg: MTSACConfig, change: dict[str, Any]) -> None:
    cfg, source = dataclasses.replace(cfg, **change), batches()
    first, second = MultiTaskSAC(cfg, SPEC, 1, seed=3), MultiTaskSAC(cfg, SPEC, 1, seed=4)
    for _ in range(4):
        first.update(next(source))
    second.load(first.state())
    for _ in range(4):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state() | {"temperature": {}}, second.state() | {"temperature": {}})
    assert first.state()["temperature"] == second.state()["temperature"]


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
def test_two_processes_give_the_bits_of_one(cfg: MTSACConfig) -> None:
    alone, together = (MultiTaskSAC(dataclasses.replace(cfg, processes=p), SPEC, 1, seed=0) for p in (1, 2))
    together.wait_until_ready()
    source = batches()
    try:
        for _ in range(3):
            batch = next(source)
            assert alone.update(batch) == together.update(batch)
        assert_same_bits(alone.state()["policy"], together.state()["policy"])
    finally:
        together.close()


def test_each_task_has_its_own_temperature_and_says_so() -> None:
    sac, source = MultiTaskSAC(SMALL, SPEC, 1, seed=0), batches()
    for _ in range(3):
        metrics = sac.update(next(source))
    assert metrics["entropy"] == pytest.approx(np.mean([metrics[f"entropy/{task}"] for task in TASKS]), rel=1e-5)
    assert metrics["alpha"] == pytest.approx(np.mean([metrics[f"alpha/{task}"] for task in TASKS]))
    before = sac.state()["temperature"]
    metrics = sac.update(next(source))
    for task, saved, found in zip(TASKS, before, sac.state()["temperature"], strict=True):
        alone = LearnedTemperature(1.0, target_entropy=-2.0, lr=SMALL.alpha_lr)
        alone.load(saved)
        alone.update(metrics[f"entropy/{task}"])
        assert found == alone.state()
    assert len({state["m"] for state in before}) == K


def test_a_batch_of_one_task_alone_moves_no_other_tasks_head() -> None:
    sac, batch = MultiTaskSAC(dataclasses.replace(SMALL, alpha=0.0), SPEC, 1, seed=0), next(batches())
    sac._load_batch(batch)
    sac._pool.run(("critic_gradients",))
    shape, mem = sac._shape, sac._mem
    before = {name: g.clone() for name, g in shape.critics.views(mem["critics_grad"].sum(0)).items()}
    changed = batch._replace(reward=batch.reward + np.repeat([0.0, 5.0, 0.0], 8).astype(np.float32))
    sac._noise_rng = MultiTaskSAC(SMALL, SPEC, 1, seed=0)._noise_rng
    sac._load_batch(changed)
    sac._pool.run(("critic_gradients",))
    after = shape.critics.views(mem["critics_grad"].sum(0))
    for name, grad in after.items():
        if grad.ndim == 3 or ("bias" in name and grad.ndim == 2):  # a head's
            assert [not torch.equal(a, b) for a, b in zip(grad, before[name], strict=True)] == [False, True, False]
        else:
            assert not torch.equal(grad, before[name])


def test_weights_scale_the_gradients_of_their_tasks_rows() -> None:
    weighted = MultiTaskSAC(dataclasses.replace(SMALL, task_weights="temperature"), SPEC, 1, seed=0)
    equal = MultiTaskSAC(SMALL, SPEC, 1, seed=0)
    for sac in (weighted, equal):
        for temperature, log_alpha in zip(sac._temperatures, (-1.0, -2.0, -3.0), strict=True):
            temperature.load({"log_alpha": log_alpha, "m": 0.0, "v": 0.0, "step": 0})
        sac._load_batch(next(batches()))
        sac._pool.run(("critic_gradients",))
    weights = task_weights([math.exp(x) for x in (-1.0, -2.0, -3.0)])
    for name in ("0.linear3.weight", "1.linear2.bias"):
        ours, plain = (s._shape.critics.views(s._mem["critics_grad"].sum(0))[name] for s in (weighted, equal))
        for k, weight in enumerate(weights):
            torch.testing.assert_close(ours[k], weight * plain[k], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_policy_acts_by_each_rows_task_in_any_order(cfg: MTSACConfig, normalize_obs: bool) -> None:
    sac, source = MultiTaskSAC(dataclasses.replace(cfg, normalize_obs=normalize_obs), SPEC, 1, seed=0), batches()
    sac.update(next(source))
    obs, rng = next(source).obs, np.random.default_rng(0)
    wanted = act(sac.policy, obs, False, rng)
    order = np.random.default_rng(1).permutation(len(obs))
    for rows in (order, order[:5], order[:1]):
        np.testing.assert_allclose(act(sac.policy, obs[rows], False, rng), wanted[rows], rtol=1e-4, atol=1e-6)
    saved = ActorPolicy.from_state(sac.state()["policy"], SPEC)
    sent: Any = build_policy(sac.policy.blueprint())
    flat = np.empty(sac.policy.num_weights, np.float32)
    sac.policy.write_weights(flat)
    sent.read_weights(flat, 1)
    for other in (saved, sent, sac.policy.snapshot()):
        assert np.array_equal(act(other, obs, False, rng), wanted)


# where states are the same, hard routings can tell tasks apart by a handful of paths only, and are slow to find them
@pytest.mark.parametrize("net", [name for name in NETS if name != "hard"])
def test_each_task_finds_its_own_optimum_of_the_same_states(net: str) -> None:
    best = np.array([[1.2, 0.25], [-1.2, 0.75], [0.0, 0.5]])
    cfg = dataclasses.replace(
        NETS[net], hidden=(32, 32), head_hidden=(32,), module_width=32, gate_hidden=(32,), batch_size=96, actor_lr=3e-3,
        critic_lr=3e-3, alpha=0.01,
    )  # fmt: skip
    sac, rng = MultiTaskSAC(cfg, SPEC, 1, seed=0), np.random.default_rng(0)
    obs = np.concatenate((np.ones((96, 5), np.float32), one_hot(96)), 1)
    for _ in range(700):
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (96, 2)).astype(np.float32)
        reward = -np.square((action - np.repeat(best, 32, axis=0)) * [1.0, 4.0]).sum(1).astype(np.float32)
        sac.update(Batch(obs, action, reward, obs, np.zeros(96, np.float32)))
    found = act(sac.policy, obs[::32], False, rng)
    np.testing.assert_allclose(found, best, atol=0.25)


def test_soft_modules_say_how_evenly_they_are_mixed_and_how() -> None:
    sac = MultiTaskSAC(NETS["deep"], SPEC, 1, seed=0)
    metrics = sac.update(next(batches()))
    assert all(0.0 < metrics[f"evenness/layer{i}"] <= 1.0 for i in range(4))
    act(sac.policy, next(batches()).obs[:7], False, np.random.default_rng(0))
    assert [p.shape for p in sac.policy.routing] == [(7, 4, 4)] * 3 + [(7, 1, 4)]
    assert "evenness/layer0" not in MultiTaskSAC(SMALL, SPEC, 1, seed=0).update(next(batches()))


def test_plain_sac_takes_a_set_as_one_environment() -> None:
    sac = MultiTaskSAC(SACConfig(hidden=(16,), batch_size=24, processes=1), SPEC, 1, seed=0)
    assert sac.needs.num_tasks == 1
    assert "alpha/a" not in sac.update(next(batches()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 16}, "batch_size 16 does not split into 3 tasks x 2 shards of equal size"),
        ({"net": "soft", "layer_norm": True}, "layer_norm is not for net 'soft'"),
        ({"net": "soft", "module_layers": 1}, "module_layers must be at least 2"),
        ({"task_weights": "temperature", "alpha": 0.1}, "needs learned temperatures"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiTaskSAC(dataclasses.replace(SMALL, **change), SPEC, 1, seed=0)


def test_one_task_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"mtsac needs a set of tasks such as metaworld/mt3: .* take --algo sac"):
        MultiTaskSAC(SMALL, dataclasses.replace(SPEC, tasks=()), 1, seed=0)
    with pytest.raises(ConfigError, match=r"leave env\.frame_stack at 1, not 2"):
        MultiTaskSAC(NETS["soft"], SPEC, 2, seed=0)
