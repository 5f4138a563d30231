"""Pick-and-place by hand: what placing sees, which picks targets are made of, and what is chosen by which values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from roboloop.algos.mtsac.mtsac import MultiTaskSAC
from roboloop.algos.pick.config import PickConfig
from roboloop.algos.pick.pick import PickAndPlace, Placing, make_pick, policy_of_picks
from roboloop.algos.pick.picks import PickLayout
from roboloop.algos.pick.policy import PickOptions, PickPolicy, RandomPicks, among_best
from roboloop.algos.policy import ActorPolicy
from roboloop.algos.sac.config import SACConfig
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, EnvSpec, PortablePolicy
from roboloop.nets.layers import Scratch
from roboloop.nets.normalize import Identity
from roboloop.nets.trunk import build_critics
from tests.algos.test_sac import act, assert_same_bits

PICK = np.dtype([("vector", np.float32, (3,)), ("picks", np.float16, (6, 2))])
SPEC = EnvSpec((), PICK, (-1.0,) * 4, (1.0,) * 4, 10, {"pick": "point"})
SAC_SMALL = SACConfig(
    hidden=(16, 16), batch_size=16, processes=1, shift_px=0, feature_dim=7,
    conv_channels=(4, 4), conv_kernels=(3, 3), conv_strides=(2, 2),
)  # fmt: skip
SMALL = PickConfig(sac=SAC_SMALL)
CORNERS = dataclasses.replace(
    SPEC,
    obs_dtype=np.dtype([("vector", np.float32, (3,)), ("picks", np.float16, (4, 4))]),
    action_low=(-1.0,) * 6,
    action_high=(1.0,) * 6,
    protocol={"pick": "corner"},
)
SEEN = dataclasses.replace(SPEC, obs_dtype=np.dtype([("image", np.uint8, (3, 8, 8)), ("picks", np.float16, (6, 2))]))
KINDS = {
    **{kind: (kind, SPEC) for kind in ("mvp", "uniform", "joint", "autoregressive")},
    **{f"{kind}-corner": (kind, CORNERS) for kind in ("mvp", "joint", "autoregressive")},
    **{f"{kind}-seen": (kind, SEEN) for kind in ("mvp", "joint", "autoregressive")},
}
every_kind = pytest.mark.parametrize(("kind", "spec"), KINDS.values(), ids=KINDS)


def seen(rows: int, seed: int = 0, spec: EnvSpec = SPEC) -> Array:
    """Return random observations."""
    rng, obs = np.random.default_rng(seed), np.zeros(rows, spec.obs_dtype)
    for name in spec.obs_dtype.names or ():
        shape = obs[name].shape
        obs[name] = rng.integers(0, 256, shape) if name == "image" else rng.uniform(-1, 1, shape)
    if spec is CORNERS:
        obs["picks"] = 2.0 * np.eye(4) - 1.0
    return obs


def batches(size: int = 16, seed: int = 0, spec: EnvSpec = SPEC) -> Iterator[Batch]:
    """Yield random batches for ever; what was picked was offered."""
    rng, dim = np.random.default_rng(seed), PickLayout.of(spec).dim
    while True:
        obs, next_obs = (seen(size, int(rng.integers(1 << 30)), spec) for _ in range(2))
        action = rng.uniform(-1, 1, (size, spec.action_dim)).astype(np.float32)
        action[:, :dim] = obs["picks"][:, 0]
        yield Batch(obs, action, rng.normal(size=size).astype(np.float32), next_obs, np.full(size, 0.9, np.float32))


def image_spec(*fields: tuple[str, Any, tuple[int, ...]]) -> EnvSpec:
    """Return the spec of records with a picture."""
    dtype = np.dtype([("image", np.uint8, (3, 8, 8)), *fields, ("picks", np.float16, (6, 2))])
    return dataclasses.replace(SPEC, obs_dtype=dtype)


def test_placing_sees_the_pick_behind_the_numbers_and_does_the_rest_of_the_action() -> None:
    picks, obs, pick = PickLayout.of(SPEC), seen(5), np.random.default_rng(1).uniform(-1, 1, (5, 2)).astype(np.float32)
    placing = picks.placing(SPEC, copies=3)
    assert (placing.obs_shape, placing.obs_dtype, placing.action_dim) == ((9,), np.dtype(np.float32), 2)
    joined = picks.with_pick(obs, pick, copies=3)
    assert joined.dtype == np.float32
    np.testing.assert_array_equal(joined, np.concatenate((obs["vector"], pick, pick, pick), axis=1))
    assert picks.unaided(SPEC).obs_shape == (3,)
    np.testing.assert_array_equal(picks.without(obs), obs["vector"])


def test_beside_a_picture_the_pick_is_the_vector_and_without_it_only_the_picture_is_left() -> None:
    spec = image_spec()
    picks, obs, pick = PickLayout.of(spec), seen(4, spec=spec), np.ones((4, 2), np.float32)
    placing, alone = picks.placing(spec, copies=1), picks.unaided(spec)
    assert placing.obs_shape == ()
    assert placing.obs_dtype == np.dtype([("image", np.uint8, (3, 8, 8)), ("vector", np.float32, (2,))])
    joined = picks.with_pick(obs, pick, copies=1)
    assert joined.dtype == placing.obs_dtype
    np.testing.assert_array_equal(joined["image"], obs["image"])
    np.testing.assert_array_equal(joined["vector"], pick)
    assert (alone.obs_shape, alone.obs_dtype) == ((3, 8, 8), np.dtype(np.uint8))
    np.testing.assert_array_equal(picks.without(obs), obs["image"])


def test_a_vector_beside_a_picture_stays_before_the_pick() -> None:
    spec = image_spec(("vector", np.float32, (3,)))
    picks, obs = PickLayout.of(spec), seen(4, spec=spec)
    joined = picks.with_pick(obs, np.ones((4, 2), np.float32), copies=1)
    np.testing.assert_array_equal(joined["vector"], np.concatenate((obs["vector"], np.ones((4, 2))), axis=1))
    np.testing.assert_array_equal(picks.without(obs)["vector"], obs["vector"])


def test_next_picks_are_drawn_evenly_from_what_is_offered_next() -> None:
    batch = next(batches(size=600))
    view = Placing(PickLayout.of(SPEC), 1, seed=0)(batch)
    np.testing.assert_array_equal(view.obs[:, 3:], batch.action[:, :2])
    np.testing.assert_array_equal(view.action, batch.action[:, 2:])
    is_it = (batch.next_obs["picks"] == view.next_obs[:, None, 3:]).all(2)
    assert is_it.any(1).all()
    assert (abs(is_it.sum(0) - 100) < 40).all()


def test_targets_are_those_of_the_next_pick() -> None:
    """Where all candidates are the same, the update is SAC's on states that hold that pick."""
    algo, rl, source = make_pick(SMALL, SPEC, seed=0), None, batches()
    rl = MultiTaskSAC(SAC_SMALL, EnvSpec((5,), np.dtype(np.float32), (-1.0,) * 2, (1.0,) * 2, 10), 1, seed=0)
    for _ in range(3):
        batch = next(source)
        batch.next_obs["picks"] = batch.next_obs["picks"][:, :1]
        by_hand = batch._replace(
            obs=np.concatenate((batch.obs["vector"], batch.action[:, :2]), axis=1),
            action=batch.action[:, 2:],
            next_obs=np.concatenate((batch.next_obs["vector"], batch.next_obs["picks"][:, 0]), axis=1),
        )
        assert algo.update(batch) == rl.update(by_hand)
    assert_same_bits({k: v for k, v in algo.state().items() if k != "view"}, rl.state())


def test_the_best_is_the_greatest_and_a_share_of_the_best_is_drawn_evenly() -> None:
    values, rng = np.array([[1.0, 5.0, 3.0, 4.0], [9.0, 2.0, 2.0, 8.0]]), np.random.default_rng(0)
    assert among_best(values, 0.0, rng).tolist() == [1, 0]
    assert rng.random() == np.random.default_rng(0).random(), "nothing is drawn where there is nothing to draw"
    drawn = np.array([among_best(values, 0.5, rng) for _ in range(400)])
    for column, best in ((0, (1, 3)), (1, (0, 3))):
        counts = [int((drawn[:, column] == k).sum()) for k in best]
        assert sum(counts) == 400
        assert min(counts) > 150
    assert {int(k) for k in np.array([among_best(values, 1.0, rng) for _ in range(100)])[:, 0]} == {0, 1, 2, 3}


def linear(widths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Return an MLP of zeros, whose weights lie as roboloop has them."""
    shapes = itertools.pairwise(widths)
    return {
        name: torch.zeros(shape)
        for i, (a, b) in enumerate(shapes)
        for name, shape in ((f"linear{i}.weight", (min(a, b), max(a, b))), (f"linear{i}.bias", (b,)))
    }


def chooser(critic_of_d: float) -> PickPolicy:
    """Return a policy whose means are 3 everywhere, and whose critics are -|px - 0.3| and that plus c d - 1."""
    picks = PickLayout.of(SPEC)
    actor = linear((5, 4, 4))
    actor["linear1.bias"][:2] = 3.0
    critics = {}
    for name, more in (("0", 0.0), ("1", critic_of_d)):
        net = linear((7, 3, 1))
        # hidden units: px - 0.3, 0.3 - px, d_x + 1 (never cut off); inputs are vector (3), pick (2), displacement (2)
        weight = net["linear0.weight"].t()
        weight[3, 0], weight[3, 1], weight[5, 2] = 1.0, -1.0, 1.0
        net["linear0.bias"][:] = torch.tensor([-0.3, 0.3, 1.0])
        net["linear1.weight"].view(3)[:] = torch.tensor([-1.0, -1.0, more])
        net["linear1.bias"][0] = -1.0 if more else 0.0
        critics |= {f"{name}.{leaf}": value for leaf, value in net.items()}
    policy = ActorPolicy(actor, picks.placing(SPEC, 1), Identity())
    return PickPolicy(policy, SPEC, PickOptions(best=True), critics)


def test_the_pick_of_a_handmade_critic_is_its_maximum() -> None:
    obs, policy = seen(9), chooser(0.0)
    wanted = abs(obs["picks"][..., 0].astype(np.float32) - 0.3).argmin(1)
    action = act(policy, obs, False, np.random.default_rng(0))
    np.testing.assert_array_equal(action[:, :2], obs["picks"][np.arange(9), wanted].astype(np.float32))
    np.testing.assert_allclose(action[:, 2:], np.tanh(3.0), rtol=1e-6)


def test_candidates_are_valued_at_the_squashed_mean_by_the_least_critic() -> None:
    obs = seen(2)
    values = chooser(0.5)._calm.judge(obs).values  # type: ignore[attr-defined]
    base = -abs(obs["picks"][..., 0].astype(np.float32) - 0.3)
    # the second critic adds 0.5 (tanh(3) + 1) - 1 < 0, and would add 1 to the mean before it is squashed
    np.testing.assert_allclose(values, base + min(0.0, 0.5 * (np.tanh(3.0) + 1.0) - 1.0), atol=1e-6)


def test_a_picture_that_is_looked_at_once_is_worth_what_it_is_with_each_candidate_by_itself() -> None:
    algo, source = make_pick(SMALL, SEEN, seed=0), batches(spec=SEEN)
    for _ in range(3):
        algo.update(next(source))
    obs, policy, picks = seen(3, spec=SEEN), algo.policy, PickLayout.of(SEEN)
    judged = policy._calm.judge(obs)  # type: ignore[union-attr]
    critics = algo._rl.critic_weights
    for k in range(6):
        one = picks.with_pick(obs, obs["picks"][:, k], 1)
        move = act(algo._rl.policy, one, False, np.random.default_rng(0))
        np.testing.assert_allclose(np.tanh(judged.outputs[:, k, :2]), move, atol=1e-5)
        sight = algo._rl.policy.sight
        assert sight is not None
        x = torch.cat([sight.features(one), torch.from_numpy(np.concatenate((one["vector"], move), axis=1))], 1)
        net = algo._rl._shape.critic_spec
        q = build_critics(net, 2, critics, None, 3, Scratch()).forward(x).amin(0)
        np.testing.assert_allclose(judged.values[:, k], q.numpy(), atol=1e-5)


def test_exploring_draws_all_candidates_unless_the_best_are_asked_for() -> None:
    obs = np.repeat(seen(1), 300)
    for habit, most in (
        (PickOptions(best=True), 6),
        (PickOptions(best=True, best_exploring=True, fraction_exploring=0.33), 2),
    ):
        made = chooser(0.0)
        policy = PickPolicy(made.actor, SPEC, habit, made._critics)
        picked = act(policy, obs, True, np.random.default_rng(0))[:, :2]
        assert len(np.unique(picked, axis=0)) == most


def test_uniform_picks_are_drawn_in_evaluation_too() -> None:
    algo, obs = make_pick(dataclasses.replace(SMALL, pick="uniform"), SPEC, seed=0), np.repeat(seen(1), 300)
    assert len(np.unique(act(algo.policy, obs, False, np.random.default_rng(0))[:, :2], axis=0)) == 6


def test_warm_up_picks_what_is_offered_and_moves_it_anywhere() -> None:
    obs = np.repeat(seen(1), 2000)
    action = act(RandomPicks(SPEC), obs, True, np.random.default_rng(0))
    assert {tuple(p) for p in action[:, :2]} == {tuple(p) for p in obs["picks"][0].astype(np.float32)}
    np.testing.assert_allclose([action[:, 2:].min(), action[:, 2:].max()], [-1, 1], atol=0.01)


def rebuilt(policy: PortablePolicy) -> PortablePolicy:
    """Return the policy as another process has it."""
    other, flat = build_policy(policy.blueprint()), np.zeros(policy.num_weights, np.float32)
    policy.write_weights(flat)
    other.read_weights(flat, 7)
    assert other.version == 7
    return other


@every_kind
@pytest.mark.parametrize("sac", [{}, {"normalize_obs": True, "layer_norm": True}], ids=["plain", "norms"])
def test_other_processes_and_saved_runs_act_as_the_live_policy_does(
    kind: Any, spec: EnvSpec, sac: dict[str, Any]
) -> None:
    cfg = dataclasses.replace(SMALL, pick=kind, pick_in_training="mvp", sac=dataclasses.replace(SAC_SMALL, **sac))
    algo, source = make_pick(cfg, spec, seed=0), batches(spec=spec)
    for _ in range(3):
        algo.update(next(source))
    saved, obs = policy_of_picks(cfg, spec, algo.state()), seen(7, spec=spec)
    assert saved.version == 3
    for policy in (saved, rebuilt(algo.policy), rebuilt(saved)):
        for explore in (False, True):
            wanted, got = (act(p, obs, explore, np.random.default_rng(3)) for p in (algo.policy, policy))
            assert wanted.shape == (7, spec.action_dim)
            assert np.array_equal(wanted, got)
            if spec is CORNERS:
                assert {tuple(row) for row in wanted[:, :4]} <= {tuple(row) for row in 2.0 * np.eye(4) - 1.0}


def test_the_live_policy_chooses_by_the_critics_of_the_last_update() -> None:
    algo, obs, source = make_pick(SMALL, SPEC, seed=0), seen(50), batches()
    before = act(algo.policy, obs, False, np.random.default_rng(0))[:, :2]
    for _ in range(30):
        algo.update(next(source))
    assert not np.array_equal(act(algo.policy, obs, False, np.random.default_rng(0))[:, :2], before)


def test_step_sizes_that_fall_are_zero_when_training_ends() -> None:
    sac = dataclasses.replace(SAC_SMALL, lr_schedule="linear")
    algo = make_pick(dataclasses.replace(SMALL, sac=sac), SPEC, seed=0)
    before = algo.state()
    algo.progress = 1.0
    algo.update(next(batches()))
    for net in ("policy", "critics"):
        assert_same_bits(before[net], algo.state()[net])


@every_kind
def test_state_and_load_continue_bit_for_bit(kind: Any, spec: EnvSpec) -> None:
    cfg, source = dataclasses.replace(SMALL, pick=kind), batches(spec=spec)
    first, second = (make_pick(cfg, spec, seed=s) for s in (3, 4))
    for _ in range(3):
        first.update(next(source))
    second.load(first.state())
    for _ in range(3):
        batch = next(source)
        assert first.update(batch) == second.update(batch)
    assert_same_bits(first.state(), second.state())


@pytest.mark.parametrize(("kind", "spec"), [KINDS["mvp"], KINDS["joint-corner"], KINDS["autoregressive-seen"]])
def test_one_process_and_two_give_the_same_bits(kind: Any, spec: EnvSpec) -> None:
    def learned(processes: int) -> PickAndPlace:
        sac = dataclasses.replace(SAC_SMALL, processes=processes)
        algo, source = make_pick(dataclasses.replace(SMALL, pick=kind, sac=sac), spec, seed=0), batches(spec=spec)
        algo._rl.wait_until_ready()
        for _ in range(3):
            algo.update(next(source))
        algo.close()
        return algo

    assert_same_bits(learned(1).state(), learned(2).state())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dataclasses.replace(SPEC, obs_shape=(3,), obs_dtype=np.dtype(np.float32)), r"set env.soft.pick: chosen"),
        (dataclasses.replace(SPEC, action_low=(-1.0,) * 2, action_high=(1.0,) * 2), "nothing is left to place"),
        (dataclasses.replace(SPEC, protocol={"pick": "corner"}), "6 candidates cannot have 2 numbers"),
        (image_spec(("sound", np.float32, (3,))), "not image, sound, picks"),
    ],
)
def test_what_offers_no_picks_is_refused_in_one_line(spec: EnvSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_pick(SMALL, spec, seed=0)


def test_pictures_are_not_shifted_under_their_picks() -> None:
    assert PickConfig().sac.shift_px == 0
    shifted = dataclasses.replace(SMALL, sac=dataclasses.replace(SAC_SMALL, shift_px=4))
    with pytest.raises(ConfigError, match=r"shift_px moves pictures .*: set it to 0"):
        make_pick(shifted, SEEN, seed=0)


@pytest.mark.parametrize("change", [{"top_fraction": 1.5}, {"training_top_fraction": -0.1}, {"pick_copies": 0}])
def test_impossible_configs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        dataclasses.replace(SMALL, **change).check()
