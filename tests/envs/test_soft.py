"""Rope and cloth in MuJoCo: picks, places, pictures, first states and scripted hands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roboloop.core.errors import ConfigError
from roboloop.envs import EnvConfig, make, registry
from roboloop.envs.check import check_env
from roboloop.envs.headless import prefer_egl
from roboloop.envs.soft import suite as soft_suite
from roboloop.envs.soft.suite import SoftEnvConfig

prefer_egl()
pytest.importorskip("mujoco")

from roboloop.envs.env import SimulatorDied  # noqa: E402
from roboloop.envs.soft import starts  # noqa: E402
from roboloop.envs.soft.config import SoftConfig  # noqa: E402
from roboloop.envs.soft.experts import KNOWN, scripted_policy  # noqa: E402
from roboloop.envs.soft.model import ROPE, sheet  # noqa: E402
from roboloop.envs.soft.physics import Physics  # noqa: E402
from roboloop.envs.soft.rewards import LEAST_ROOM  # noqa: E402
from roboloop.envs.soft.tasks import CORNER, MOVE_M, TASKS  # noqa: E402
from roboloop.envs.soft.world import SoftEnv  # noqa: E402

CLOTH = sheet(9)
FEW = ("rope-straighten", "cloth-spread", "cloth-two-hand", "seam-3")


def soft(task: str, observe: str = "state", horizon: int | None = None, **options: Any) -> SoftEnv:
    cfg = SoftEnvConfig(id=f"soft/{task}", observe=observe, max_episode_steps=horizon, soft=SoftConfig(**options))
    env = make(cfg)
    assert isinstance(env, SoftEnv)
    return env


def physics_of(env: SoftEnv) -> Physics:
    return env.world._physics


def test_the_names_are_those_of_the_tasks() -> None:
    assert set(soft_suite.TASKS) == set(TASKS)


@pytest.mark.parametrize("task", soft_suite.TASKS)
def test_every_task_passes_the_contract(task: str) -> None:
    check_env(lambda: soft(task, horizon=5, pool=4, pick="given"), steps=4)


@pytest.mark.parametrize("task", FEW)
@pytest.mark.parametrize(("observe", "pick"), [("state", "chosen"), ("pixels", "given"), ("pixels", "chosen")])
def test_every_view_passes_the_contract(task: str, observe: str, pick: str) -> None:
    check_env(lambda: soft(task, observe, horizon=4, pool=4, pick=pick), steps=3, pictures=False)


def test_a_randomized_task_passes_the_contract() -> None:
    everything = ("colors", "light", "camera", "friction", "mass", "damping")
    check_env(lambda: soft("rope-straighten", "pixels", horizon=4, pool=4, pick="given", randomize=everything), steps=3)


@pytest.mark.parametrize(
    ("task", "observe", "pick", "fields", "actions"),
    [
        ("rope-straighten", "state", "given", {"": (77,)}, 2),
        ("rope-straighten", "state", "chosen", {"vector": (75,), "picks": (25, 2)}, 4),
        ("cloth-spread", "state", "given", {"": (245,)}, 3),
        ("cloth-spread", "state", "chosen", {"vector": (243,), "picks": (81, 2)}, 5),
        ("cloth-spread", "pixels", "given", {"image": (3, 64, 64), "vector": (2,)}, 3),
        ("cloth-spread", "pixels", "chosen", {"image": (3, 64, 64), "picks": (96, 2)}, 5),
        ("cloth-corner", "state", "given", {"": (247,)}, 3),
        ("cloth-corner", "pixels", "chosen", {"image": (3, 64, 64), "picks": (4, 4)}, 7),
        ("cloth-two-hand", "state", "given", {"": (247,)}, 6),
        ("cloth-two-hand", "state", "chosen", {"vector": (243,), "picks": (64, 4)}, 10),
        ("cloth-two-hand", "pixels", "chosen", {"image": (3, 64, 64), "picks": (64, 4)}, 10),
        ("seam-6", "state", "chosen", {"vector": (108,), "picks": (4, 4)}, 7),
    ],
)
def test_observations_and_actions_have_the_promised_form(
    task: str, observe: str, pick: str, fields: dict[str, tuple[int, ...]], actions: int
) -> None:
    spec = soft(task, observe, pick=pick).spec
    found = spec.obs_dtype.fields
    shapes = {"": spec.obs_shape} if found is None else {name: kind.shape for name, (kind, *_) in found.items()}
    assert shapes == fields
    assert spec.action_dim == actions


@pytest.mark.parametrize("observe", ["state", "pixels"])
@pytest.mark.parametrize("task", ["rope-straighten", "cloth-spread", "cloth-two-hand", "cloth-corner"])
def test_every_candidate_catches_something(task: str, observe: str) -> None:
    env = soft(task, observe, pool=4)
    obs = env.reset(3)
    world = env.world
    caught = [world._picks.caught(physics_of(env).points_m, pick) for pick in obs["picks"].astype(np.float64)]
    assert min(first for first, *_ in caught) >= 0
    assert np.mean(np.array(caught) < 0) <= 0.02  # two pixels may mean one particle
    assert np.abs(obs["picks"]).max() <= 1


def test_candidates_stay_on_the_table_and_valid_where_the_sheet_hangs_over_its_edge() -> None:
    env = soft("cloth-spread", pool=4)
    env.reset(0)
    points_m = CLOTH.flat_m + np.array([0.15, 0.0, 0.0])  # seven centimetres beyond
    picks = env.world._picks.candidates(points_m, np.random.default_rng(0))
    assert picks.shape == (81, 2)
    assert np.abs(picks).max() <= 1
    assert all(env.world._picks.caught(points_m, pick)[0] >= 0 for pick in picks)


def test_two_hands_are_given_two_places() -> None:
    env = soft("cloth-two-hand", pool=4)
    picks = env.reset(0)["picks"]
    assert (picks[:, :2] != picks[:, 2:]).any(axis=1).all()


def test_a_held_particle_goes_where_it_is_carried_however_short_the_way() -> None:
    for flex in (ROPE, CLOTH):
        for way_m in (-0.02, 0.01, 0.1):
            physics = Physics(flex, 64)
            start_m = physics.points_m[0].copy()
            physics.pick_place([0], start_m[None, :2] + [[way_m, 0.0]], [0.0])
            moved_m = physics.points_m[0] - start_m
            assert moved_m[0] == pytest.approx(way_m, abs=0.1 * abs(way_m) + 0.004)
            assert abs(moved_m[1]) < 0.004


def test_the_move_is_in_action_units_and_the_hand_stays_over_the_table() -> None:
    env = soft("rope-straighten", start="fixed")
    env.reset(0)
    x_m = []
    held = int(np.argmax(physics_of(env).points_m[:, 0]))
    for _ in range(5):
        at_m = physics_of(env).points_m[held, :2]
        x_m.append(at_m[0])
        env.step(np.array([*at_m / ROPE.half_m, 0.5, 0.0]))
    assert x_m[1] - x_m[0] == pytest.approx(0.5 * MOVE_M, abs=0.005)
    assert x_m[-1] == pytest.approx(ROPE.half_m, abs=0.005)


def test_nothing_is_left_of_a_pick_but_where_the_particles_are() -> None:
    physics = Physics(CLOTH, 64)
    weights = physics.model.dof_M0.copy()
    physics.pick_place([0, 80], np.array([[0.0, 0.0], [0.1, 0.1]]), [0.02, 0.0])
    assert (physics.model.dof_M0 == weights).all()
    for left in (physics.data.qvel, physics.data.xfrc_applied, physics.data.qfrc_applied, physics.data.qacc_warmstart):
        assert not left.any()


@pytest.mark.parametrize("flex", [ROPE, CLOTH, sheet(3)], ids=["rope", "cloth", "coarse"])
def test_random_picks_keep_the_object_whole(flex: Any) -> None:
    physics, rng, strains = Physics(flex, 64), np.random.default_rng(0), []
    for _ in range(25):
        particle = int(rng.integers(flex.num_particles))
        target_m = np.clip(physics.points_m[particle, :2] + rng.uniform(-0.1, 0.1, 2), -flex.half_m, flex.half_m)
        physics.pick_place([particle], target_m[None], [float(rng.uniform(0, 0.05)) * flex.is_sheet])
        strains.append(physics.strain)
    assert np.mean(strains) < 0.12
    assert max(strains) < 0.4
    assert physics.points_m[:, 2].min() > 0


def test_two_hands_do_not_tear_a_sheet() -> None:
    env = soft("cloth-two-hand", start="fixed")
    env.reset(0)
    for _ in range(6):
        corners = physics_of(env).points_m[[0, 80], :2] / CLOTH.half_m
        env.step(np.concatenate([*corners, [-1, -1, -1], [1, 1, -1]]))
        assert physics_of(env).strain < 0.3


def test_a_pick_beside_the_object_is_a_counted_step_that_changes_nothing() -> None:
    env = soft("cloth-spread", pool=4)
    env.reset(0)
    before_m = physics_of(env).points_m
    _, _, _, _, info = env.step(np.array([0.99, 0.99, 1.0, 1.0, 1.0]))
    assert (physics_of(env).points_m == before_m).all()
    assert info["missed_picks"] == 1
    assert info["raw_reward"] == info["performance"] == 0.0
    for _ in range(env.spec.max_episode_steps - 2):
        assert not env.step(np.array([0.99, 0.99, 1.0, 1.0, 1.0]))[3]
    assert env.step(np.array([0.99, 0.99, 1.0, 1.0, 1.0]))[3]


def test_two_hands_at_one_place_hold_two_particles_and_where_there_is_only_one_the_second_misses() -> None:
    env = soft("cloth-two-hand", start="fixed")
    env.reset(0)
    pick = np.tile(CLOTH.flat_m[40, :2] / CLOTH.half_m, 2)
    assert env.world._picks.caught(CLOTH.flat_m, pick) == [40, -1]  # the next one is 3 cm away
    tight_m = CLOTH.flat_m * np.array([0.5, 0.5, 1.0])
    first, second = env.world._picks.caught(tight_m, pick)
    assert first == 40
    assert second in (31, 39, 41, 49)


def test_of_two_particles_at_one_place_the_upper_one_is_caught() -> None:
    env = soft("cloth-spread", pool=4)
    env.reset(0)
    points_m = CLOTH.flat_m
    points_m[70] = points_m[10] + np.array([0.001, 0.0, 0.02])
    assert env.world._picks.caught(points_m, points_m[10, :2] / CLOTH.half_m) == [70]


def test_a_given_pick_is_the_one_that_the_move_moves() -> None:
    for observe in ("state", "pixels"):
        env = soft("cloth-spread", observe, pool=4, pick="given")
        obs = env.reset(5)
        shown = (obs["vector"] if obs.dtype.names else obs)[-2:]
        points_m = physics_of(env).points_m
        particle = env.world._picks.caught(points_m, shown.astype(np.float64))[0]
        env.step(np.array([0.5, 0.0, 0.0]))
        moved_m = np.linalg.norm(physics_of(env).points_m - points_m, axis=1)
        assert moved_m[particle] > 0.03


def test_given_picks_are_drawn_from_all_of_the_object() -> None:
    env = soft("cloth-corner", pool=4, pick="given")
    drawn = {int(np.argmax(env.reset(seed)[-4:])) for seed in range(30)}
    assert drawn == {0, 1, 2, 3}


def test_the_reward_is_of_the_state_after_the_action() -> None:
    env = soft("cloth-spread", pool=4, pick="given")
    env.reset(0)
    for _ in range(3):
        _, reward, *_ = env.step(np.array([0.5, 0.5, 0.0]))
        assert reward == env.world._judge.score(physics_of(env).points_m)


def test_raw_rewards_add_up_to_the_normalised_performance_in_percent() -> None:
    env = soft("cloth-spread", pool=4, pick="given", horizon=6)
    env.reset(1)
    first = env.world._judge.score(physics_of(env).points_m)
    steps = [env.step(np.array([0.6, -0.6, 0.2])) for _ in range(6)]
    performance = (steps[-1][1] - first) / (1.0 - first)
    assert sum(step[4]["raw_reward"] for step in steps) == pytest.approx(100 * performance)
    assert steps[-1][4]["performance"] == pytest.approx(performance)


@pytest.mark.parametrize("task", ["rope-straighten", "cloth-spread"])
@pytest.mark.parametrize("randomize", [(), ("camera",)])
def test_the_object_is_where_the_geometry_says_in_the_picture(task: str, randomize: tuple[str, ...]) -> None:
    env = soft(task, "pixels", pool=4, randomize=randomize)
    for seed in range(3):
        image = env.reset(seed)["image"].astype(int)
        expected = env.world._picks.visible(env.world._picks.view.units_of(physics_of(env).points_m))
        background = image[:, 0, 0]
        seen = np.abs(image - background[:, None, None]).sum(axis=0) > 25
        # a sheet is as thick as its particles, which the silhouette leaves out
        assert (seen & expected).sum() > (0.95 if task == "cloth-spread" else 0.85) * expected.sum()
        assert (seen & expected).sum() > 0.75 * seen.sum()


@pytest.mark.parametrize("name", ["colors", "light"])
def test_colors_and_light_change_the_picture_and_nothing_else(name: str) -> None:
    plain, varied = (
        soft("cloth-spread", "pixels", pool=4),
        soft("cloth-spread", "pixels", pool=4, randomize=(name,)),
    )
    a, b = plain.reset(0), varied.reset(0)
    assert (a["picks"] == b["picks"]).all()
    assert np.abs(a["image"].astype(int) - b["image"]).mean() > 3
    action = np.array([*a["picks"][0], 0.5, 0.5, 0.0])
    assert plain.step(action)[1] == varied.step(action)[1]


@pytest.mark.parametrize("name", ["friction", "mass", "damping"])
def test_randomized_physics_moves_the_object_elsewhere(name: str) -> None:
    plain, varied = soft("cloth-spread", pool=4), soft("cloth-spread", pool=4, randomize=(name,))
    a, b = plain.reset(0), varied.reset(0)
    assert (a["vector"] == b["vector"]).all()
    action = np.array([*a["picks"][0], 1.0, 1.0, 0.0])
    assert (plain.step(action)[0]["vector"] != varied.step(action)[0]["vector"]).any()


def test_state_number_k_of_the_pool_depends_on_k_alone() -> None:
    one, other = Physics(ROPE, 64), Physics(ROPE, 64)
    starts._made.clear()
    first = [starts.of_pool(one, k).copy() for k in (0, 1, 2)]
    starts._made.clear()
    again = [starts.of_pool(other, k).copy() for k in (2, 0, 1)]
    assert all((a == b).all() for a, b in zip(first, [again[1], again[2], again[0]], strict=True))
    assert not (first[0] == first[1]).all()


def test_episodes_never_begin_alike_although_the_pool_is_small() -> None:
    env = soft("rope-straighten", pool=1)
    a, b = (env.reset(seed)["vector"].reshape(-1, 3) for seed in (0, 1))
    assert not (a[:, :2] == b[:, :2]).any()
    fixed = soft("rope-straighten", start="fixed")
    assert (fixed.reset(0)["vector"] == fixed.reset(1)["vector"]).all()


@pytest.mark.parametrize("task", soft_suite.TASKS)
@pytest.mark.parametrize("start", ["random", "fixed"])
def test_no_episode_begins_with_its_task_done_however_small_the_pool(task: str, start: str) -> None:
    env = soft(task, pool=1, start=start)
    for seed in range(5):
        env.reset(seed)
        judge, points_m = env.world._judge, physics_of(env).points_m
        assert judge.best - judge.score(points_m) >= LEAST_ROOM.get(TASKS[task].rewards[0], 0.1) - 1e-9


def test_without_a_pool_each_episode_is_crumpled_anew() -> None:
    env = soft("rope-straighten", pool=0)
    first = env.reset(0)["vector"]
    assert (first == soft("rope-straighten", pool=0).reset(0)["vector"]).all()
    lengths = [np.linalg.norm(np.diff(vector.reshape(-1, 3)[[0, 12, 24]], axis=0), axis=1) for vector in
               (first, env.reset(1)["vector"])]  # fmt: skip
    assert not np.allclose(*lengths, rtol=1e-3)  # another shape, not the same one turned


def test_physics_that_fails_is_a_fault_of_the_simulator_and_not_data() -> None:
    env = soft("cloth-spread", pool=4, pick="given")
    env.reset(0)
    physics_of(env).data.qpos[7] = np.nan
    with pytest.raises(SimulatorDied, match="flew apart"):
        env.step(np.zeros(3))
    env.reset(0)
    physics_of(env).data.qpos[:] *= 4.0
    with pytest.raises(SimulatorDied, match=r"an edge of the cloth is off by \d+% of its length"):
        physics_of(env)._must_be_whole()


def test_pulling_corners_to_their_places_spreads_a_cloth_and_chance_does_not() -> None:
    def final(name: str) -> float:
        env, policy, rng = soft("cloth-spread", pool=4, horizon=15), scripted_policy("cloth-spread", name), None
        obs, info = env.reset(2), {}
        for _ in range(15):
            action = policy.act(obs[None], np.zeros((1, 0)), False, rng or np.random.default_rng(0)).action[0]
            obs, _, _, _, info = env.step(action)
        return float(info["performance"])

    assert final("place") > 0.7
    assert final("random") < 0.3


@pytest.mark.parametrize("observe", ["state", "pixels"])
@pytest.mark.parametrize(("task", "name"), [(task, name) for task, found in KNOWN.items() for name in found])
def test_every_scripted_hand_hits_the_object(task: str, name: str, observe: str) -> None:
    env, policy, rng = soft(task, observe, pool=4), scripted_policy(task, name), np.random.default_rng(0)
    obs = env.reset(0)
    if (TASKS[task].pick == CORNER or task == "cloth-fold") and observe == "pixels" and name != "random":
        with pytest.raises(ConfigError, match="cannot be told in a picture"):
            policy.act(obs[None], np.zeros((1, 0)), False, rng)
        return
    for _ in range(3):
        obs, _, _, _, info = env.step(policy.act(obs[None], np.zeros((1, 0)), False, rng).action[0])
    assert info["missed_picks"] <= (task == "cloth-two-hand")  # two pixels may mean one particle


def test_scripted_hands_are_found_by_name() -> None:
    assert registry.scripted_policy("soft/cloth-spread", "outward").blueprint()["name"] == "outward"
    assert registry.scripted_policy("soft/seam-6").blueprint()["name"] == "outward"
    with pytest.raises(ConfigError, match="did you mean 'outward'"):
        registry.scripted_policy("soft/cloth-spread", "outwards")


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (EnvConfig(id="soft/cloth-spraed"), "did you mean 'cloth-spread'"),
        (SoftEnvConfig(id="soft/cloth-spread", soft=SoftConfig(pick="choosen")), "did you mean 'chosen'"),
        (SoftEnvConfig(id="soft/cloth-spread", soft=SoftConfig(reward="cover")), "did you mean 'coverage'"),
        (
            SoftEnvConfig(id="soft/rope-straighten", soft=SoftConfig(reward="area")),
            "is one of line, distance, not 'area'",
        ),
        (SoftEnvConfig(id="soft/cloth-spread", soft=SoftConfig(randomize=("colours",))), "did you mean 'colors'"),
        (SoftEnvConfig(id="soft/cloth-spread", soft=SoftConfig(pool=-1)), "env.soft.pool must be 0 or more"),
        (SoftEnvConfig(id="soft/cloth-spread", image_size=(64, 48)), "must be square"),
        (EnvConfig(id="soft/cloth-spread", action_repeat=2), "repeats no actions"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cfg: EnvConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make(cfg)
    assert "\n" not in str(error.value)
