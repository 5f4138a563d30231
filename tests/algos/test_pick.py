"""Pick-and-place by hand: what placing sees, which picks targets are made of, and what is chosen by which values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from roboloop.algos.learner.inputs import Rows
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.algos.pick import pick
from roboloop.algos.pick.config import PickConfig, PickSACConfig
from roboloop.algos.pick.pick import OffersPicks, Placing, make_pick
from roboloop.algos.pick.picks import PickLayout
from roboloop.algos.pick.policy import RandomPicks
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.sac.setup import make_sac
from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.types import Array, Batch, EnvSpec, PortablePolicy
from roboloop.nets.flat import clone
from roboloop.nets.normalize import Identity
from tests.algos.learners import saved_policy
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


def learner_of(spec: EnvSpec, seed: int = 0, **changes: Any) -> OffersPicks:
    """Return a learner of SMALL."""
    torch.manual_seed(seed)
    made, own = pick.learner_of(dataclasses.replace(SMALL, **changes), spec)
    return made(own, spec)


def rows_of(obs: Array) -> Rows:
    """Return observations as a learner sees them; a vector of nothing where there is none."""
    fields = {name: torch.from_numpy(np.asarray(obs[name], np.float32)) for name in obs.dtype.names or ()}
    fields.setdefault("vector", torch.zeros(len(obs), 0))
    return Rows(**fields)


def test_placing_sees_the_pick_behind_the_numbers_and_does_the_rest_of_the_action() -> None:
    learner, obs, one = learner_of(SPEC, pick_copies=3), rows_of(seen(5)), torch.rand(5, 2)
    assert (learner.obs_dim, learner.action_dim) == (9, 2)
    assert torch.equal(learner.shown(obs, one), torch.cat((obs.vector, one, one, one), 1))
    alone = learner_of(SPEC, pick="joint")
    assert (alone.obs_dim, alone.action_dim) == (3, 4)
    assert torch.equal(alone.shown(obs), obs.vector)


def test_beside_a_picture_the_pick_stands_behind_the_vector() -> None:
    for fields, numbers in (((), 2), ((("vector", np.float32, (3,)),), 5)):
        learner, picture = learner_of(image_spec(*fields)), torch.zeros(4, 2)
        vector = torch.rand(4, numbers - 2)
        shown = learner.shown(Rows(vector=vector, picture0=picture, picks=torch.rand(4, 6, 2)), torch.ones(4, 2))
        assert learner.obs_dim == numbers
        assert vars(shown).keys() == {"vector", "picture0"}
        assert shown.picture0 is picture
        assert torch.equal(shown.vector, torch.cat((vector, torch.ones(4, 2)), 1))


def test_next_picks_are_drawn_evenly_from_what_is_offered_next() -> None:
    learner, batch = learner_of(SPEC), next(batches(size=600))
    assert isinstance(learner, Placing)
    obs, next_obs, action = rows_of(batch.obs), rows_of(batch.next_obs), torch.from_numpy(batch.action)
    noise = Rows(pick=torch.randn(600, 1, generator=torch.Generator().manual_seed(0)))
    placed = learner.placed(Rows(obs=obs, next_obs=next_obs, action=action), noise)
    assert torch.equal(placed.obs[:, 3:], action[:, :2])
    assert torch.equal(placed.action, action[:, 2:])
    is_it = (next_obs.picks == placed.next_obs[:, None, 3:]).all(2)
    assert is_it.any(1).all()
    assert ((is_it.sum(0) - 100).abs() < 40).all()


def test_targets_are_those_of_the_next_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all candidates are the same, the update is SAC's on states that hold that pick."""
    algo, source = make_pick(SMALL, SPEC, seed=0), batches()
    rl = make_sac(SAC_SMALL, EnvSpec((5,), np.dtype(np.float32), (-1.0,) * 2, (1.0,) * 2, 10), 1, seed=0)

    def same_noise(rng: np.random.Generator) -> None:
        for name in ("now", "next"):
            rl.trainer.arrays[f"noise/{name}"][:] = algo.trainer.arrays[f"noise/{name}"]

    monkeypatch.setattr(rl.trainer, "draw_noise", same_noise)
    for _ in range(3):
        batch = next(source)
        batch.next_obs["picks"] = batch.next_obs["picks"][:, :1]
        by_hand = batch._replace(
            obs=np.concatenate((batch.obs["vector"], batch.action[:, :2]), axis=1),
            action=batch.action[:, 2:],
            next_obs=np.concatenate((batch.next_obs["vector"], batch.next_obs["picks"][:, 0]), axis=1),
        )
        assert algo.update(batch) == rl.update(by_hand)
    for name, view in rl.trainer.views.items():
        assert torch.equal(view, algo.trainer.views[name])


class Rated(Placing):
    """Placing whose candidates are worth what it is told."""

    def candidates(self, obs: Rows) -> tuple[Tensor, Tensor]:
        """Return values, and means of 3 everywhere."""
        return self.rating, torch.cat((torch.full((*self.rating.shape, 2), 3.0), torch.zeros(*self.rating.shape, 2)), 2)


def chosen(values: list[list[float]], **options: Any) -> Array:
    """Return which candidates an evaluation picks among 400 times."""
    learner = Rated(PickSACConfig.of(SMALL, SAC_SMALL), SPEC)
    learner.cfg = dataclasses.replace(learner.cfg, **options)
    learner.rating = torch.tensor(values).repeat(400, 1)
    picks = torch.arange(6.0).view(1, 6, 1).expand(len(learner.rating), 6, 2)
    numbers = learner.calm_draws(np.random.default_rng(0), len(learner.rating))
    noise = None if numbers is None else torch.from_numpy(numbers)
    action = learner.act(Rows(vector=torch.zeros(len(picks), 3), picks=picks), noise)
    torch.testing.assert_close(action[:, 2:], torch.full((len(action), 2), 3.0).tanh())
    return action[:, 0].long().numpy().reshape(400, -1)


def test_the_best_is_the_greatest_and_a_share_of_the_best_is_drawn_evenly() -> None:
    values = [[1.0, 5.0, 3.0, 4.0, 0.0, 0.0], [9.0, 2.0, 2.0, 8.0, 0.0, 0.0]]
    assert {tuple(row) for row in chosen(values)} == {(1, 0)}
    drawn = chosen(values, fraction=0.33)
    for column, best in ((0, (1, 3)), (1, (0, 3))):
        counts = [int((drawn[:, column] == k).sum()) for k in best]
        assert sum(counts) == 400
        assert min(counts) > 150
    assert set(chosen(values, fraction=1.0)[:, 0].tolist()) == set(range(6))


def test_nothing_is_drawn_where_there_is_nothing_to_draw() -> None:
    learner = learner_of(SPEC)
    assert learner.calm_draws(np.random.default_rng(0), 3) is None


def chooser(critic_of_d: float, pick_sac: dict[str, Any] | None = None) -> LearnerPolicy:
    """Return a policy whose means are 3 everywhere, and whose critics are -|px - 0.3| and that plus c d - 1."""
    cfg = dataclasses.replace(SMALL, sac=dataclasses.replace(SAC_SMALL, hidden=(4,)), **(pick_sac or {}))
    learner = pick.Placing(PickSACConfig.of(cfg, cfg.sac), SPEC)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.zero_()
        learner.actor[-1].bias[:2] = 3.0
        for net, more in zip(learner.critics, (0.0, critic_of_d), strict=True):
            # hidden units: px - 0.3, 0.3 - px, d_x + 1 (never cut off); inputs are vector (3), pick (2), displacement
            first, last = net[0], net[2]
            first.weight[0, 3], first.weight[1, 3], first.weight[2, 5] = 1.0, -1.0, 1.0
            first.bias[:3] = torch.tensor([-0.3, 0.3, 1.0])
            last.weight[0, :3] = torch.tensor([-1.0, -1.0, more])
            last.bias[0] = -1.0 if more else 0.0
    return LearnerPolicy(learner, Identity(), {name: p.detach() for name, p in learner.named_parameters()})


def test_the_pick_of_a_handmade_critic_is_its_maximum() -> None:
    obs, policy = seen(9), chooser(0.0)
    wanted = abs(obs["picks"][..., 0].astype(np.float32) - 0.3).argmin(1)
    action = act(policy, obs, False, np.random.default_rng(0))
    np.testing.assert_array_equal(action[:, :2], obs["picks"][np.arange(9), wanted].astype(np.float32))
    np.testing.assert_allclose(action[:, 2:], np.tanh(3.0), rtol=1e-6)


def test_candidates_are_valued_at_the_squashed_mean_by_the_least_critic() -> None:
    obs, learner = seen(2), chooser(0.5).learner
    assert isinstance(learner, Placing)
    values = learner.candidates(rows_of(obs))[0].detach().numpy()
    base = -abs(obs["picks"][..., 0].astype(np.float32) - 0.3)
    # the second critic adds 0.5 (tanh(3) + 1) - 1 < 0, and would add 1 to the mean before it is squashed
    np.testing.assert_allclose(values, base + min(0.0, 0.5 * (np.tanh(3.0) + 1.0) - 1.0), atol=1e-6)


def test_a_picture_that_is_looked_at_once_is_worth_what_it_is_with_each_candidate_by_itself() -> None:
    algo, source = make_pick(SMALL, SEEN, seed=0), batches(spec=SEEN)
    for _ in range(3):
        algo.update(next(source))
    learner = algo.trainer.pool.own_shard.losses["actor_loss"]._loss.__self__
    obs = seen(3, spec=SEEN)
    blocks = torch.empty(3, learner.reads[0].block_bytes, dtype=torch.uint8)
    learner.reads[0].to_blocks(obs["image"], blocks.numpy())
    rows = Rows(vector=torch.zeros(3, 0), picture0=blocks, picks=torch.from_numpy(obs["picks"].astype(np.float32)))
    values, outputs = learner.candidates(rows)
    for k in range(6):
        x = learner.see(learner.shown(rows, rows.picks[:, k]))
        move = learner.actor(x)[:, :2].tanh()
        torch.testing.assert_close(outputs[:, k, :2].tanh(), move)
        torch.testing.assert_close(values[:, k], learner.values(learner.critics, x, move).amin(0))


def test_exploring_draws_all_candidates_unless_the_best_are_asked_for() -> None:
    obs = np.repeat(seen(1), 300)
    for options, most in (({}, 6), ({"pick_in_training": "mvp", "training_top_fraction": 0.33}, 2)):
        picked = act(chooser(0.0, options), obs, True, np.random.default_rng(0))[:, :2]
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
    saved, obs = saved_policy(algo), seen(7, spec=spec)
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
    before = clone(algo.trainer.views)
    algo.progress = 1.0
    algo.update(next(batches()))
    assert [name for name, view in algo.trainer.views.items() if not torch.equal(view, before[name])] == ["log_alpha"]


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
    def learned(processes: int) -> ReplayLearner:
        sac = dataclasses.replace(SAC_SMALL, processes=processes)
        algo, source = make_pick(dataclasses.replace(SMALL, pick=kind, sac=sac), spec, seed=0), batches(spec=spec)
        algo.wait_until_ready()
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
