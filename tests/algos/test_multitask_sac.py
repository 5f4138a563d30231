"""SAC for a set of tasks: maths by hand, what tasks share and what they do not, exact resume, equal processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.mtsac.mtsac import MultiTaskSAC, make_mtsac
from roboloop.algos.mtsac.multitask import TaskDeviations
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Batch, EnvSpec
from tests.algos.learners import gradients, saved_policy
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


class Said(MultiTaskSAC):
    """Multi-task SAC whose critics say what they are told; log-probabilities are 2 everywhere."""

    def values(self, critics: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
        """Return what it was told."""
        return self.target_q if critics is self.target_critics else self.q

    def draw(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return no action, and a density."""
        return torch.zeros(len(obs), 2), torch.full((len(obs),), 2.0)


def said(log_alphas: tuple[float, ...], **changes: Any) -> Said:
    """Return a learner of one row per task with these temperatures."""
    learner = Said(dataclasses.replace(SMALL, batch_size=6, **changes), SPEC)
    with torch.no_grad():
        learner.log_alpha.copy_(torch.tensor(log_alphas))
    return learner


def test_each_rows_temperature_is_its_tasks() -> None:
    learner = said((math.log(0.5), math.log(0.25), 0.0))
    learner.target_q = torch.tensor([[10.0, 10.0, 7.0], [12.0, 9.0, 8.0]])
    learner.q = torch.tensor([[5.5, 5.25, 3.5]])  # 1 + 0.5 (min Q' - alpha 2)
    batch = Rows(obs=torch.zeros(3, 8), next_obs=torch.zeros(3, 8), action=torch.zeros(3, 2), reward=torch.ones(3),
                 discount=torch.full((3,), 0.5))  # fmt: skip
    loss, _ = learner.critic_loss(batch, Rows(next=None))
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    learner.q = torch.tensor([[10.0, 10.0, 7.0], [12.0, 9.0, 8.0]])
    loss, metrics = learner.actor_terms(learner.q, torch.full((3,), 2.0))
    assert metrics["actor_loss"].item() == pytest.approx(((0.5 * 2 - 10) + (0.25 * 2 - 9) + (2 - 7)) / 3)
    assert metrics["entropy"].item() == -2.0
    # each temperature's gradient is its own task's entropy minus what is wanted, -dim(A)
    assert torch.autograd.grad(loss, learner.log_alpha)[0].tolist() == [0.0, 0.0, 0.0]
    entropies = torch.tensor([2.5, 1.0, 3.0])
    loss, metrics = learner.actor_terms(learner.q, entropies)
    assert torch.autograd.grad(loss, learner.log_alpha)[0].tolist() == [-0.5, 1.0, -1.0]
    assert [metrics[f"entropy/{task}"].item() for task in TASKS] == [-2.5, -1.0, -3.0]


def test_weights_fall_with_the_temperature_and_have_mean_one() -> None:
    equal = said((1.0, 1.0, 1.0), task_weights="temperature")
    assert equal.weighed(torch.ones(3)).tolist() == pytest.approx([1.0, 1.0, 1.0])
    weights = said(tuple(map(math.log, (0.1, 0.2, 0.4))), task_weights="temperature").weighed(torch.ones(1, 6))
    assert weights[0].tolist() == pytest.approx([12 / 7, 12 / 7, 6 / 7, 6 / 7, 3 / 7, 3 / 7])
    assert said((0.1, 0.2, 0.3)).weighed(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_rewards_are_divided_by_the_deviation_of_their_own_task() -> None:
    def shown(view: TaskDeviations) -> Any:
        reward = np.array([0.0, 20.0, 0.0, 2.0], np.float32)
        return view(next(batches())._replace(reward=reward)).reward

    view, other = TaskDeviations(2), TaskDeviations(2)
    np.testing.assert_allclose(shown(view), [0.0, 20 / math.sqrt(100.01), 0.0, 2 / math.sqrt(1.01)], rtol=1e-6)
    other.load(view.state())
    assert np.array_equal(shown(view), shown(other))


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
@pytest.mark.parametrize(
    "change", [{}, {"task_weights": "temperature", "normalize_reward": True, "normalize_obs": True}, {"alpha": 0.1}]
)
def test_state_and_load_continue_bit_for_bit(cfg: MTSACConfig, change: dict[str, Any]) -> None:
    cfg, source = dataclasses.replace(cfg, **change), batches()
    first, second = make_mtsac(cfg, SPEC, 1, seed=3), make_mtsac(cfg, SPEC, 1, seed=4)
    for _ in range(4):
        first.update(next(source))
    second.load(first.state())
    for _ in range(4):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
def test_two_processes_give_the_bits_of_one(cfg: MTSACConfig) -> None:
    alone, together = (make_mtsac(dataclasses.replace(cfg, processes=p), SPEC, 1, seed=0) for p in (1, 2))
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
    sac, source = make_mtsac(SMALL, SPEC, 1, seed=0), batches()
    for _ in range(3):
        metrics = sac.update(next(source))
    assert metrics["entropy"] == pytest.approx(np.mean([metrics[f"entropy/{task}"] for task in TASKS]), rel=1e-5)
    assert metrics["alpha"] == pytest.approx(np.mean([metrics[f"alpha/{task}"] for task in TASKS]))
    before = sac.trainer.views["log_alpha"].clone()
    metrics = sac.update(next(source))
    for k, task in enumerate(TASKS):
        assert metrics[f"alpha/{task}"] == pytest.approx(before[k].exp().item())
    moved = sac.trainer.views["log_alpha"] - before
    assert len(set(moved.tolist())) == K
    assert sac.trainer.memory["log_alpha/m"][:K].unique().numel() == K


def is_a_heads(name: str, net: str = "critics") -> bool:
    """Say whether a gradient of SMALL's networks is that of heads, ``[K, ...]``."""
    parts = name.split(".")
    return parts[0] == net and parts[-2] in ("4", "6")


def test_rewards_of_one_task_move_no_other_tasks_head() -> None:
    sac, batch = make_mtsac(dataclasses.replace(SMALL, alpha=0.0), SPEC, 1, seed=0), next(batches())
    before = gradients(sac, batch)
    changed = batch._replace(reward=batch.reward + np.repeat([0.0, 5.0, 0.0], 8).astype(np.float32))
    after = gradients(sac, changed)
    assert sum(map(is_a_heads, after)) == 8
    for name, grad in after.items():
        if is_a_heads(name):
            assert [not torch.equal(a, b) for a, b in zip(grad, before[name], strict=True)] == [False, True, False]
        elif name.startswith("critics"):
            assert not torch.equal(grad, before[name])


def test_weights_scale_the_gradients_of_their_tasks_rows() -> None:
    found, batch, log_alphas = [], next(batches()), torch.tensor([-1.0, -2.0, -3.0])
    for cfg in (SMALL, dataclasses.replace(SMALL, task_weights="temperature")):
        sac = make_mtsac(cfg, SPEC, 1, seed=0)
        sac.trainer.views["log_alpha"].copy_(log_alphas)
        found.append(gradients(sac, batch))
    weights = K * (-log_alphas).softmax(0)
    for name, plain in found[0].items():
        if is_a_heads(name) or is_a_heads(name, "actor"):
            for k, weight in enumerate(weights):
                torch.testing.assert_close(found[1][name][k], weight * plain[k], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("cfg", NETS.values(), ids=NETS.keys())
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_policy_acts_by_each_rows_task_in_any_order(cfg: MTSACConfig, normalize_obs: bool) -> None:
    sac, source = make_mtsac(dataclasses.replace(cfg, normalize_obs=normalize_obs), SPEC, 1, seed=0), batches()
    sac.update(next(source))
    obs, rng = next(source).obs, np.random.default_rng(0)
    wanted = act(sac.policy, obs, False, rng)
    order = np.random.default_rng(1).permutation(len(obs))
    for rows in (order, order[:5], order[:1]):
        np.testing.assert_allclose(act(sac.policy, obs[rows], False, rng), wanted[rows], rtol=1e-4, atol=1e-6)
    saved = saved_policy(sac)
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
    sac, rng = make_mtsac(cfg, SPEC, 1, seed=0), np.random.default_rng(0)
    obs = np.concatenate((np.ones((96, 5), np.float32), one_hot(96)), 1)
    for _ in range(1400):
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (96, 2)).astype(np.float32)
        reward = -np.square((action - np.repeat(best, 32, axis=0)) * [1.0, 4.0]).sum(1).astype(np.float32)
        sac.update(Batch(obs, action, reward, obs, np.zeros(96, np.float32)))
    found = act(sac.policy, obs[::32], False, rng)
    np.testing.assert_allclose(found, best, atol=0.25)


def test_soft_modules_say_how_evenly_they_are_mixed() -> None:
    sac = make_mtsac(NETS["deep"], SPEC, 1, seed=0)
    metrics = sac.update(next(batches()))
    assert all(0.0 < metrics[f"evenness/layer{i}"] <= 1.0 for i in range(4))
    assert "evenness/layer0" not in make_mtsac(SMALL, SPEC, 1, seed=0).update(next(batches()))


def test_plain_sac_takes_a_set_as_one_environment() -> None:
    sac = make_sac(SACConfig(hidden=(16,), batch_size=24, processes=1), SPEC, 1, seed=0)
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
        make_mtsac(dataclasses.replace(SMALL, **change), SPEC, 1, seed=0)


def test_one_task_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"mtsac needs a set of tasks such as metaworld/mt3: .* take --algo sac"):
        make_mtsac(SMALL, dataclasses.replace(SPEC, tasks=()), 1, seed=0)
    with pytest.raises(ConfigError, match=r"leave env\.frame_stack at 1, not 2"):
        make_mtsac(NETS["soft"], SPEC, 2, seed=0)
