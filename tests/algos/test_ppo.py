"""PPO as a whole: first pass, exact resume, equality over processes, staleness, V-trace, normalisation."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.learner.learner import Rows
from roboloop.algos.learner.on_policy import FACTS, Minibatch
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.returns import ends_of, gae
from roboloop.algos.learner.rollout_learner import RolloutLearner
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.losses import log_ratio_of
from roboloop.algos.ppo.ppo import PPO, make_ppo
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import EnvSpec, Rollout
from roboloop.nets.actor_critic import activation_of
from tests.algos.test_returns import vtrace
from tests.algos.test_sac import assert_same_bits
from tests.algos.test_shards import needs_two_cores, wait_until
from tests.algos.toys import Aim, Anything, Match, Player, World

SMALL = PPOConfig(
    hidden=(16,), conv_channels=(4, 6), conv_kernels=(4, 3), conv_strides=(2, 1), conv_features=12, core_size=10,
    rollout_steps=6, minibatches=2, epochs=2, processes=1,
)  # fmt: skip
ONCE = {"epochs": 1, "minibatches": 1}
KINDS: list[dict[str, Any]] = [
    {},
    {"core": "gru", "kl_uniform_coef": 0.01, "lr_schedule": "kl"},
    {"core": "lstm", "state_dependent_std": True, "normalize_returns": True, "value_clip": 0.2, "shards": 1},
    {"vtrace": True, "normalize_obs": True, "normalize_returns": True, "entropy_coef": 0.01, "lr_schedule": "linear"},
    {"core": "gru", "vtrace": True, "normalize_obs": True, "normalize_advantage": False, "max_grad_norm": 0.0},
]


def make(
    change: dict[str, Any], world: type[World] = Anything, num_envs: int = 8, seed: int = 0
) -> tuple[RolloutLearner, Player]:
    """Return a PPO and someone who plays by its policy."""
    ppo = make_ppo(dataclasses.replace(SMALL, **change), world.spec, 1, num_envs, seed)
    return ppo, Player(world(num_envs), ppo.policy)


def learner_of(ppo: RolloutLearner) -> PPO:
    assert isinstance(ppo.policy.learner, PPO)
    return ppo.policy.learner


def rows_of(ppo: RolloutLearner, rollout: Rollout) -> tuple[Minibatch, torch.Tensor]:
    """Return what the present network says of a whole rollout, and log pi / pi_old, by the only shard."""
    ppo._load_rollout(rollout, np.ones(ppo._num_envs, np.float32))
    (index,) = ppo._minibatches()
    ppo.trainer.put("index", np.sort(index))
    batch: Rows = ppo.trainer.pool.own_shard.losses["loss"]._batch
    with torch.no_grad():
        rows = learner_of(ppo).look(batch)
    return rows, log_ratio_of(rows.log_prob, rows.old_log_prob)


@pytest.mark.parametrize("change", KINDS)
def test_on_the_first_pass_the_ratio_is_one_and_nothing_is_clipped(change: dict[str, Any]) -> None:
    """Also with masks, memory, normalised observations, and episodes that end inside the rollout."""
    ppo, player = make({**change, **ONCE, "lr_schedule": "constant"})
    for _ in range(3):
        metrics = ppo.update(player.collect(ppo.policy, 6))
        assert metrics["clip_fraction"] == 0.0
        assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    other, _ = make({**change, **ONCE, "shards": 1, "lr_schedule": "constant"}, seed=5)
    _, log_ratio = rows_of(other, player.collect(ppo.policy, 6))
    assert log_ratio.abs().max() > 1e-4, "another policy's ratio is not one"


@pytest.mark.parametrize("change", KINDS)
def test_state_and_load_continue_bit_for_bit(change: dict[str, Any]) -> None:
    first, player = make(change)
    second, _ = make(change, seed=1)
    for progress in (0.0, 0.1):
        first.progress = progress
        first.update(player.collect(first.policy, 6))
    second.load(first.state())
    for progress in (0.2, 0.3):
        rollout = player.collect(first.policy, 6)
        first.progress = second.progress = progress
        assert first.update(rollout) == second.update(rollout)
    assert_same_bits(first.state(), second.state())
    assert first.num_updates == first.policy.version == 16


def test_state_is_a_copy_that_later_updates_leave_alone() -> None:
    ppo, player = make({"normalize_obs": True, "normalize_returns": True})
    before = ppo.state()
    kept = copy.deepcopy(before)
    ppo.update(player.collect(ppo.policy, 6))
    assert_same_bits(before, kept)


@needs_two_cores
@pytest.mark.parametrize("change", [KINDS[3], KINDS[1]])
def test_two_processes_give_the_bits_of_one(change: dict[str, Any]) -> None:
    two, player = make({**change, "processes": 2})
    one, _ = make(change)
    two.update(player.collect(two.policy, 6))
    wait_until(two.trainer.pool._all_ready, "helper start")
    one.load(two.state())
    for _ in range(3):
        rollout = player.collect(two.policy, 6)
        assert one.update(rollout) == two.update(rollout)
    assert_same_bits(one.state(), two.state())
    two.close()


def moment_of(ppo: RolloutLearner) -> torch.Tensor:
    return ppo.trainer.memory["net/m"]


@pytest.mark.parametrize("change", [{}, {"core": "gru"}, {"vtrace": True, "normalize_advantage": False}])
def test_shards_add_up_to_the_whole_gradient(change: dict[str, Any]) -> None:
    whole, player = make({**change, **ONCE, "shards": 1, "lr_schedule": "constant"})
    parts, _ = make({**change, **ONCE, "shards": 4, "lr_schedule": "constant"})
    rollout = player.collect(whole.policy, 6)
    a, b = whole.update(rollout), parts.update(rollout)
    for name, value in a.items():
        assert b[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    torch.testing.assert_close(moment_of(parts), moment_of(whole), atol=1e-5, rtol=1e-3)


def test_the_gradient_is_cut_to_its_longest_length() -> None:
    long, player = make({**ONCE, "max_grad_norm": 0.0, "value_coef": 100.0})
    short, _ = make({**ONCE, "max_grad_norm": 0.1, "value_coef": 100.0})
    rollout = player.collect(long.policy, 6)
    assert long.update(rollout)["grad_norm"] == short.update(rollout)["grad_norm"] > 0.1
    # Adam's first moment is a tenth of the gradient
    a, b = moment_of(short), moment_of(long)
    assert a.norm().item() == pytest.approx(0.1 * 0.1, rel=1e-3)
    torch.testing.assert_close(a / a.norm(), b / b.norm())


def test_stale_columns_do_not_count() -> None:
    """The update equals one in which what the stale columns hold is something else altogether."""
    change = {"core": "gru", "max_policy_lag": 3, "epochs": 1, "minibatches": 1}
    (a, player), (b, _) = make(change), make(change)
    rollout = player.collect(a.policy, 6)
    a.num_updates = b.num_updates = 5
    version = np.array([5, 5, 2, 2, 1, 1, 0, 0])
    first = rollout._replace(version=version)
    noise = np.where(version < 2, 1000.0, 0.0).astype(np.float32)
    second = first._replace(reward=first.reward + noise, log_prob=first.log_prob + noise)
    metrics = a.update(first)
    assert metrics["stale_fraction"] == 0.5
    assert (metrics["lag_mean"], metrics["lag_max"]) == (3.0, 5.0)
    others = b.update(second)
    assert {n: v for n, v in metrics.items() if n != "explained_variance"} == {
        n: v for n, v in others.items() if n != "explained_variance"
    }
    assert_same_bits(a.state()["policy"], b.state()["policy"])


def test_a_rollout_that_is_stale_altogether_changes_nothing() -> None:
    ppo, player = make({"max_policy_lag": 0, "normalize_obs": True, "normalize_returns": True})
    rollout = player.collect(ppo.policy, 6)
    ppo.num_updates = 1
    before = ppo.state()
    metrics = ppo.update(rollout)
    assert metrics["stale_fraction"] == 1.0
    assert np.isfinite(list(metrics.values())).all()
    after = ppo.state()
    assert_same_bits(before, after)


@pytest.mark.parametrize("normalize_returns", [False, True])
def test_vtrace_judges_by_the_present_values_and_ratios(normalize_returns: bool) -> None:
    change = {"vtrace": True, "core": "gru", "shards": 1, "normalize_returns": normalize_returns, **ONCE}
    old, player = make(change)
    ppo, _ = make(change, seed=5)
    rollout = player.collect(old.policy, 6)
    rows, log_ratio = rows_of(ppo, rollout)
    replayed = Player(Anything(8), ppo.policy)  # the same observations, seen by the other policy
    mean, std = learner_of(ppo).return_norm.tolist()
    value = rows.seen_value.numpy() * std + mean
    memory, starts = np.zeros((8, 10), np.float32), rollout.terminated | rollout.truncated
    for t in range(7):
        said = ppo.policy.act(rollout.obs[t], memory, False, replayed.rng)
        np.testing.assert_allclose(said.value, value[t], atol=1e-5)
        memory = said.memory
        if t < 6:
            memory[starts[t]] = 0.0
    advantage, target = learner_of(ppo)._corrected(rows, log_ratio)
    ratio = log_ratio.exp().view(6, 8).numpy()
    wanted = vtrace(rollout.reward, value, ends_of(rollout), ratio, 0.99, 0.95, 1.0, 1.0)
    gap = wanted.advantage - wanted.advantage.mean()
    np.testing.assert_allclose(advantage.view(6, 8), gap / gap.std(), atol=1e-4)
    np.testing.assert_allclose(target.reshape(6, 8) * std + mean, wanted.value, atol=1e-4)


def test_values_are_learned_in_units_of_returns_and_said_in_real_ones() -> None:
    ppo, player = make({"normalize_returns": True}, world=Aim)
    rollout = player.collect(ppo.policy, 6)
    big = rollout._replace(reward=1000.0 * rollout.reward - 5000.0)
    ppo._load_rollout(big, np.ones(8, np.float32))
    target = ppo.trainer.arrays["inputs/facts"][..., FACTS.index("target")]
    assert target.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert target.std(ddof=1).item() == pytest.approx(1.0, abs=0.02)
    returns = gae(big.reward, big.value, ends_of(big), 0.99, 0.95).value
    mean, std = learner_of(ppo).return_norm.tolist()
    np.testing.assert_allclose(target * std + mean, returns, rtol=1e-4)
    # what an untrained network says is then of the size of returns
    value = ppo.policy.act(player.world.obs, np.zeros((8, 0), np.float32), False, np.random.default_rng(0)).value
    assert np.abs(value - returns.mean()).max() < 5 * returns.std()


def test_when_the_scale_of_returns_moves_values_stay_what_they_were() -> None:
    ppo, player = make({"normalize_returns": True}, world=Aim)
    rollout = player.collect(ppo.policy, 6)
    ppo._load_rollout(rollout, np.ones(8, np.float32))
    obs, memory, rng = player.world.obs, np.zeros((8, 0), np.float32), np.random.default_rng(0)
    before = ppo.policy.act(obs, memory, False, rng).value
    ppo._load_rollout(rollout._replace(reward=1000.0 * rollout.reward - 5000.0), np.ones(8, np.float32))
    after = ppo.policy.act(obs, memory, False, rng).value
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=0.05)  # of thousands


def test_unscaled_values_are_learned_as_they_are_however_large() -> None:
    ppo, player = make({}, world=Aim)
    rollout = player.collect(ppo.policy, 6)
    big = rollout._replace(reward=1000.0 * rollout.reward)
    ppo._load_rollout(big, np.ones(8, np.float32))
    returns = gae(big.reward, big.value, ends_of(big), 0.99, 0.95).value
    np.testing.assert_array_equal(ppo.trainer.arrays["inputs/facts"][..., FACTS.index("target")], returns)


def test_observations_are_scaled_by_what_was_known_when_they_were_acted_upon() -> None:
    ppo, player = make({"normalize_obs": True})
    ppo.update(player.collect(ppo.policy, 6))
    rollout = player.collect(ppo.policy, 6)
    ppo.update(rollout)
    norm = ppo.policy.norm
    assert norm.state()["count"] == 2 * 6 * 8
    shift, scale = norm.numbers.reshape(2, -1)
    seen = rollout.obs["vector"]
    assert abs(shift - seen.mean((0, 1))).max() < 1.5
    assert abs(1 / scale - seen.std((0, 1))).max() < 1.5
    shift, scale = ppo.net.actor.pictures[0].pixel_norm.numpy()
    np.testing.assert_allclose(shift, [127.5] * 2, atol=5.0)
    np.testing.assert_allclose(1 / scale, [74.0] * 2, atol=5.0)


def test_stacked_frames_are_channels_of_pictures_and_parts_of_vectors() -> None:
    ppo = make_ppo(dataclasses.replace(SMALL, **ONCE), Anything.spec, frame_stack=3, num_envs=8, seed=0)
    single, player = make(ONCE)
    plain = player.collect(single.policy, 6)
    obs = np.repeat(plain.obs[:, :, None], 3, axis=2)
    assert np.isfinite(list(ppo.update(plain._replace(obs=obs)).values())).all()
    said = ppo.policy.act(obs[0], np.zeros((8, 0), np.float32), True, np.random.default_rng(0))
    player.world.obs[:] = plain.obs[0]
    player.world.step(said.action)  # asserts that choices were possible: the mask is the newest frame's
    assert learner_of(ppo).reads[0].picture == (6, 12, 16)
    assert learner_of(ppo).obs_dim == 9


def test_plain_pictures_and_plain_vectors_are_fields_too() -> None:
    picture = EnvSpec((3, 12, 16), np.dtype(np.uint8), (0.0,), (1.0,), 5, action_choices=(2,))
    seeing, plain = learner_of(make_ppo(SMALL, picture, 1, 8, 0)), learner_of(make_ppo(SMALL, Match.spec, 1, 8, 0))
    assert seeing.reads[0].picture == (3, 12, 16)
    assert activation_of(SMALL, seeing.fields) == "elu"
    assert activation_of(SMALL, plain.fields) == "tanh"


def test_what_is_not_a_number_reaches_the_state() -> None:
    ppo, player = make({})
    rollout = player.collect(ppo.policy, 6)
    rollout.reward[2, 3] = np.nan
    assert np.isnan(ppo.update(rollout)["grad_norm"])
    assert any(torch.isnan(leaf).any() for leaf in ppo.state()["policy"]["weights"].values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minibatches": 5}, "48 steps do not fall into 5 minibatches of 2 shards"),
        ({"core": "gru", "minibatches": 8}, "8 environments do not fall into 8 minibatches"),
        ({"lr_schedule": "kl", "epochs": 1}, "needs epochs above 1"),
        ({"conv_strides": (2,)}, "equally long"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"value_clip": 0.0}, "value_clip must be above 0"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(change)


def test_exploring_choices_where_there_are_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="kl_uniform_coef explores choices"):
        make({"kl_uniform_coef": 0.1}, world=Aim)


def test_a_state_of_another_network_and_a_rollout_of_another_shape_are_refused() -> None:
    ppo, player = make({})
    with pytest.raises(DataError, match=r"net.trunks.0.vector.0.0.weight has shape \(8, 3\)"):
        ppo.load(make({"hidden": (8,)})[0].state())
    with pytest.raises(DataError, match=r"saved policy has no net.trunks.0.core.input.weight"):
        make({"core": "gru"})[0].load(ppo.state())
    with pytest.raises(ConfigError, match=r"\(6, 8\) steps and environments, not \(5, 8\)"):
        ppo.update(player.collect(ppo.policy, 5))


def test_a_fresh_core_over_pictures_is_not_saturated():
    spec = EnvSpec((3, 72, 128), np.dtype(np.uint8), (0.0,), (4.0,), 100, action_choices=(5,))
    cfg = PPOConfig(core="gru", normalize_obs=True, processes=1, rollout_steps=1, minibatches=1, shards=1)
    state = make_ppo(cfg, spec, 1, 1, seed=0).state()
    # mean 0 and deviation 1
    state["policy"]["weights"]["net.trunks.0.pictures.0.pixel_norm"] = np.float32([[128.0] * 3, [1 / 74] * 3])
    policy, rng = LearnerPolicy.from_state(PPO(cfg, spec, 1), state), np.random.default_rng(0)
    # large patches of one colour: unlike noise, they add up in a layer
    pictures = np.kron(rng.integers(0, 256, (16, 3, 6, 8)), np.ones((12, 16))).astype(np.uint8)
    memory = np.zeros((16, policy.memory_size), np.float32)
    for _ in range(8):
        memory = policy.act(pictures, memory, False, rng).memory
    assert (np.abs(memory) > 0.95).mean() < 0.01
