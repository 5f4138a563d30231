"""SAC as a whole: exact resume, equality over processes, learnability."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.learner.shards import stretch
from roboloop.algos.learner.trainer import phases_of
from roboloop.algos.policy import UniformPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.sac import SAC
from roboloop.algos.sac.setup import make_sac
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import Array, Batch, EnvSpec, Policy, State
from roboloop.nets.modules import tanh_gaussian

SPEC = EnvSpec((5,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 1.0), 100)
SMALL = SACConfig(hidden=(32, 32), batch_size=16, processes=1)


def sac_of(cfg: SACConfig, spec: EnvSpec, frame_stack: int, seed: int) -> ReplayLearner:
    """Return SAC of vectors."""
    algo = make_sac(cfg, spec, frame_stack, seed)
    assert isinstance(algo, ReplayLearner)
    return algo


def batches(size: int, seed: int = 0, obs_shape: tuple[int, ...] = (5,)) -> Iterator[Batch]:
    """Yield random batches for ever."""
    rng = np.random.default_rng(seed)
    while True:
        obs, next_obs = rng.normal(size=(2, size, *obs_shape)).astype(np.float32)
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (size, 2)).astype(np.float32)
        reward = rng.normal(size=size).astype(np.float32)
        yield Batch(obs, action, reward, next_obs, (0.99 * (rng.random(size) > 0.1)).astype(np.float32))


def act(policy: Policy, obs: Array, explore: bool, rng: np.random.Generator) -> Array:
    """Return the actions of a policy without memory."""
    return policy.act(obs, np.zeros((len(obs), 0), np.float32), explore, rng).action


def flatten(state: State, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested state by path."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        leaves |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return leaves


def assert_same_bits(a: State, b: State) -> None:
    """Compare every leaf of two states."""
    left, right = flatten(a), flatten(b)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert np.array_equal(value, right[key]), f"{key} differs"


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"layer_norm": True},
        {"hidden": (24, 24, 24)},
        {"net": "residual"},
        {"alpha": 0.1},
        {"shards": 4},
        {"max_grad_norm": 0.01},
    ],
)
def test_state_and_load_continue_bit_for_bit(change: dict[str, Any]) -> None:
    cfg = dataclasses.replace(SMALL, **change)
    source = batches(16)
    first, second = sac_of(cfg, SPEC, 1, seed=3), sac_of(cfg, SPEC, 1, seed=4)
    for _ in range(5):
        first.update(next(source))
    second.load(first.state())
    for _ in range(5):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


def test_state_is_a_copy_that_later_updates_leave_alone() -> None:
    sac, source = sac_of(SMALL, SPEC, 1, seed=0), batches(16)
    before = sac.state()
    kept = copy.deepcopy(before)
    sac.update(next(source))
    assert_same_bits(before, kept)


def test_equal_seeds_give_equal_networks_and_others_do_not() -> None:
    a, b, c = (sac_of(SMALL, SPEC, 1, seed=s).state() for s in (1, 1, 2))
    assert_same_bits(a, b)
    assert not torch.equal(a["policy"]["weights"]["actor.0.weight"], c["policy"]["weights"]["actor.0.weight"])


def test_update_of_two_shards_equals_the_unsharded_update_up_to_rounding() -> None:
    whole, halves = (sac_of(dataclasses.replace(SMALL, shards=s), SPEC, 1, seed=0) for s in (1, 2))
    for batch in [b for b, _ in zip(batches(16), range(3), strict=False)]:
        for sac in (whole, halves):
            sac._load_batch(batch)
            sac.trainer.pool.run(["critic_loss/gradients"])
    ours = halves.trainer.memory["critics/grad"].sum(0)
    torch.testing.assert_close(ours, whole.trainer.memory["critics/grad"][0], atol=1e-5, rtol=1e-4)


def test_the_losses_are_those_of_the_paper() -> None:
    cfg = dataclasses.replace(SMALL, shards=1, initial_alpha=0.3, target_entropy=-1.0, reward_scale=0.5)
    sac, batch = sac_of(cfg, SPEC, 1, seed=0), next(batches(16))
    learner = SAC(cfg, SPEC)
    learner.load_state_dict({name: view.clone() for name, view in sac.trainer.views.items()})
    said = sac.update(batch)
    now, later = (torch.from_numpy(sac.trainer.arrays[f"noise/{n}"][0].copy()) for n in ("now", "next"))
    obs, next_obs, reward, discount = (
        torch.from_numpy(x) for x in (batch.obs, batch.next_obs, batch.reward, batch.discount)
    )
    unit = torch.from_numpy(sac._scale.to_unit(batch.action))
    values = lambda critics, o, a: torch.cat([critic(torch.cat((o, a), 1)) for critic in critics], 1)  # noqa: E731
    with torch.no_grad():
        mean, log_std = learner.actor(next_obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        u = mean + log_std.exp() * later
        log_prob = (normal.log_prob(u) - torch.log(1.0 - u.tanh().square())).sum(1)
        next_value = values(learner.target_critics, next_obs, u.tanh()).min(1).values - 0.3 * log_prob
        error = values(learner.critics, obs, unit) - (0.5 * reward + discount * next_value).unsqueeze(1)
    assert said["critic_loss"] == pytest.approx(0.5 * error.square().mean(0).sum().item(), rel=1e-4)
    moved = sac.policy.learner.actor  # the actor's loss is taken with critics that have moved, and before it moves
    assert not torch.equal(moved[0].weight, learner.actor[0].weight)
    for name, view in sac.trainer.views.items():
        if name.startswith("critics."):
            learner.get_parameter(name).data.copy_(view)
    action, log_prob = tanh_gaussian(learner.actor(obs), now)
    loss = (0.3 * log_prob - values(learner.critics, obs, action).min(1).values).mean()
    assert said["actor_loss"] == pytest.approx(loss.item(), abs=1e-4)
    entropy = -log_prob.mean().item()
    assert said["entropy"] == pytest.approx(entropy, abs=1e-4)
    # more entropy than wanted lowers the temperature; Adam's first step is the whole step size
    step = np.sign(-1.0 - entropy) * cfg.alpha_lr
    assert sac.trainer.views["log_alpha"].item() == pytest.approx(np.log(0.3) + step, abs=1e-6)


def test_the_actors_step_leaves_critics_untouched_and_the_critics_step_the_actor() -> None:
    sac, source = sac_of(SMALL, SPEC, 1, seed=0), batches(16)
    sac._load_batch(next(source))
    for name in ("critics", "actor", "log_alpha"):
        sac.trainer.arrays[f"{name}/step"][0] = sac.trainer.arrays[f"{name}/lr"][0] = 1.0
    critics, actor = (phases_of(step) for step in sac.trainer.steps)
    before = sac.state()
    sac.trainer.pool.run(critics)
    middle = sac.state()
    assert_same_bits(before["policy"], middle["policy"])
    assert not torch.equal(before["modules"]["critics.0.0.weight"], middle["modules"]["critics.0.0.weight"])
    sac.trainer.pool.run(actor)
    after = sac.state()
    changed = {name for name, value in after["modules"].items() if not torch.equal(value, middle["modules"][name])}
    assert changed == {"log_alpha"}
    assert not torch.equal(before["policy"]["weights"]["actor.0.weight"], after["policy"]["weights"]["actor.0.weight"])


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_fixed_temperature_never_moves(alpha: float) -> None:
    sac, source = sac_of(dataclasses.replace(SMALL, alpha=alpha), SPEC, 1, seed=0), batches(16)
    for _ in range(3):
        assert sac.update(next(source))["alpha"] == pytest.approx(alpha)


def test_a_long_gradient_is_shortened_as_a_whole() -> None:
    limited, free = (sac_of(dataclasses.replace(SMALL, max_grad_norm=m), SPEC, 1, seed=0) for m in (0.01, 0.0))
    for sac in (limited, free):
        sac.update(next(batches(16)))
    for moment in ("critics/m", "actor/m"):  # after one step, a tenth of the gradient
        ours, whole = limited.trainer.memory[moment], free.trainer.memory[moment]
        assert ours.norm().item() == pytest.approx(0.001, rel=1e-3)
        if moment == "critics/m":  # the actor's was computed with critics that had moved otherwise
            torch.testing.assert_close(ours, whole * (0.001 / whole.norm()), rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.01])
def test_linear_step_sizes_are_half_at_half_time_and_nothing_moves_at_the_end(max_grad_norm: float) -> None:
    cfg = dataclasses.replace(SMALL, lr_schedule="linear", max_grad_norm=max_grad_norm)
    moved = {}
    for progress in (0.0, 0.5, 1.0):
        sac = sac_of(cfg, SPEC, 1, seed=0)
        before = sac.trainer.memory["critics"].clone()
        sac.progress = progress
        sac.update(next(batches(16)))
        moved[progress] = sac.trainer.memory["critics"] - before
    torch.testing.assert_close(moved[0.5], 0.5 * moved[0.0], rtol=1e-3, atol=1e-7)
    assert moved[0.0].abs().max() > 1e-5
    assert not moved[1.0].any()


def test_targets_follow_by_tau() -> None:
    sac, source = sac_of(dataclasses.replace(SMALL, tau=0.25), SPEC, 1, seed=0), batches(16)
    before = sac.state()
    sac.update(next(source))
    after = sac.state()
    old, new = before["modules"], after["modules"]
    targets = [name for name in new if name.startswith("target_critics.")]
    for name in targets:
        torch.testing.assert_close(new[name], 0.75 * old[name] + 0.25 * new[name.removeprefix("target_")])
    assert len(targets) == 12


def test_policy_from_saved_weights_equals_the_live_policy() -> None:
    for layer_norm, normalize_obs in ((False, True), (True, False)):
        sac, source = (
            sac_of(dataclasses.replace(SMALL, layer_norm=layer_norm, normalize_obs=normalize_obs), SPEC, 1, seed=0),
            batches(16),
        )
        sac.update(next(source))
        saved = LearnerPolicy.from_state(SAC(sac.cfg, SPEC), sac.state())
        for rows in (1, 7):
            obs = np.random.default_rng(rows).normal(size=(rows, 5)).astype(np.float32)
            for explore in (False, True):
                wanted = act(sac.policy, obs, explore, np.random.default_rng(5))
                for policy in (saved, sac.policy.snapshot()):
                    assert np.array_equal(act(policy, obs, explore, np.random.default_rng(5)), wanted)
                assert wanted.dtype == np.float32
                assert (wanted >= SPEC.action_low).all()
                assert (wanted <= SPEC.action_high).all()


def test_policy_follows_updates_and_snapshots_do_not() -> None:
    sac, source = sac_of(SMALL, SPEC, 1, seed=0), batches(16)
    obs, rng = np.ones((3, 5), np.float32), np.random.default_rng(0)
    live, still = sac.policy, sac.policy.snapshot()
    before = act(live, obs, False, rng).copy()
    for _ in range(3):
        sac.update(next(source))
    assert not np.array_equal(act(live, obs, False, rng), before)
    assert np.array_equal(act(still, obs, False, rng), before)


def test_actions_returned_earlier_are_not_overwritten() -> None:
    sac, rng = sac_of(SMALL, SPEC, 1, seed=0), np.random.default_rng(0)
    first = act(sac.policy, np.zeros((1, 5), np.float32), False, rng)
    kept = first.copy()
    act(sac.policy, np.ones((1, 5), np.float32), False, rng)
    assert np.array_equal(first, kept)


def test_uniform_policy_fills_the_box() -> None:
    actions = act(UniformPolicy(SPEC), np.zeros((2000, 5)), True, np.random.default_rng(0))
    np.testing.assert_allclose(actions.min(0), SPEC.action_low, atol=0.01)
    np.testing.assert_allclose(actions.max(0), SPEC.action_high, atol=0.01)


def test_stacked_frames_are_flattened() -> None:
    sac = sac_of(SMALL, SPEC, frame_stack=3, seed=0)
    metrics = sac.update(next(batches(16, obs_shape=(3, 5))))
    assert np.isfinite(list(metrics.values())).all()
    assert act(sac.policy, np.zeros((2, 3, 5), np.float32), True, np.random.default_rng(0)).shape == (2, 2)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_policy_mean_finds_the_optimum_of_a_quadratic_bandit(layer_norm: bool) -> None:
    best = np.array([1.2, 0.25])
    cfg = SACConfig(hidden=(64, 64), batch_size=64, actor_lr=3e-3, critic_lr=3e-3, alpha=0.01, processes=1,
                    layer_norm=layer_norm)  # fmt: skip
    sac, rng = sac_of(cfg, SPEC, 1, seed=0), np.random.default_rng(0)
    for _ in range(800):
        action = rng.uniform(SPEC.action_low, SPEC.action_high, (64, 2)).astype(np.float32)
        obs = np.ones((64, 5), np.float32)
        reward = -np.square((action - best) * [1.0, 4.0]).sum(1).astype(np.float32)
        sac.update(Batch(obs, action, reward, obs, np.zeros(64, np.float32)))
    found = act(sac.policy, np.ones((1, 5), np.float32), False, rng)[0]
    np.testing.assert_allclose(found, best, atol=0.2)


@pytest.mark.parametrize("change", [{"batch_size": 15}, {"hidden": ()}, {"gamma": 1.5}, {"alpha": -1.0}, {"shards": 0}])
def test_impossible_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        sac_of(dataclasses.replace(SMALL, **change), SPEC, 1, seed=0)


def test_unbounded_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="finite"):
        sac_of(SMALL, dataclasses.replace(SPEC, action_high=(np.inf, 1.0)), 1, seed=0)


def test_a_state_of_other_widths_is_refused_by_name() -> None:
    other = sac_of(dataclasses.replace(SMALL, hidden=(16, 16)), SPEC, 1, seed=0)
    with pytest.raises(DataError, match=r"saved policy/actor.0.weight has shape \(16, 5\)"):
        sac_of(SMALL, SPEC, 1, seed=0).load(other.state())


def test_stretches_cover_the_vector_once() -> None:
    for size, parts in ((1000, 3), (16, 4), (17, 2)):
        covered = [i for part in range(parts) for i in range(size)[stretch(size, parts, part)]]
        assert covered == list(range(size))


def test_choices_and_records_are_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="SAC needs continuous actions; PPO takes choices: --algo ppo"):
        sac_of(SMALL, dataclasses.replace(SPEC, action_choices=(0, 3)), 1, seed=0)
    record = np.dtype([("image", np.uint8, (3, 8, 8)), ("picks", np.float32, (4, 2))])
    with pytest.raises(
        ConfigError,
        match="not the fields image, picks; --algo pick chooses",
    ):
        sac_of(SMALL, dataclasses.replace(SPEC, obs_shape=(), obs_dtype=record), 1, seed=0)


def test_the_version_of_the_policy_counts_updates_also_after_loading() -> None:
    sac, other, source = sac_of(SMALL, SPEC, 1, seed=0), sac_of(SMALL, SPEC, 1, seed=0), batches(16)
    for _ in range(3):
        sac.update(next(source))
    other.load(sac.state())
    assert sac.policy.version == other.policy.version == 3
