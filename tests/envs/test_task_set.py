"""Sets of tasks: ids, who does what, and that each copy is the task alone with its number behind what it sees."""

from __future__ import annotations

import numpy as np
import pytest

from roboloop.core.blueprint import build_policy
from roboloop.core.errors import ConfigError
from roboloop.core.state import spec_from_data, spec_to_data
from roboloop.envs import EnvConfig, make, registry, scripted_policy, task_name
from roboloop.envs.check import check_env
from roboloop.envs.headless import prefer_egl
from roboloop.envs.metaworld import suite as metaworld_suite

TWO = EnvConfig(id="tiny/point+mirror")


@pytest.mark.parametrize(
    ("env_id", "tasks"),
    [
        ("metaworld/mt3", ("reach-v3", "window-open-v3", "drawer-close-v3")),
        ("metaworld/mt10", metaworld_suite.MT10),
        ("metaworld/reach-v3+push-v3", ("reach-v3", "push-v3")),
        ("metaworld/0+8", ("reach-v3", "window-open-v3")),
        ("tiny/point+mirror", ("point", "mirror")),
        ("metaworld/reach-v3", ()),
        ("tiny/point", ()),
    ],
)
def test_an_id_names_one_task_or_several(env_id: str, tasks: tuple[str, ...]) -> None:
    assert registry.task_set(env_id) == tasks


def test_the_sets_are_metaworlds_own() -> None:
    prefer_egl()
    env_dict = pytest.importorskip("metaworld.env_dict")
    assert {name: len(tasks) for name, tasks in metaworld_suite.SETS.items()} == {
        "mt3": 3, "mt10": 10, "mt25": 25, "mt50": 50
    }  # fmt: skip
    assert list(metaworld_suite.MT25) == list(env_dict.MT25_V3)
    assert set(metaworld_suite.SETS["mt50"]) == set(env_dict.MT50_V3)


def test_names_of_sets_are_safe_in_a_path_and_never_too_long() -> None:
    assert task_name("metaworld/mt3") == "mt3"
    assert task_name("metaworld/0+8") == "reach-v3+window-open-v3"
    many = task_name("metaworld/" + "+".join(metaworld_suite.TASKS[:20]))
    assert len(many) < 120
    assert many != task_name("metaworld/" + "+".join(metaworld_suite.TASKS[:21]))


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("metaworld/reach-v3+windw-open-v3", "unknown Meta-World task 'windw-open-v3'; did you mean 'window-open-v3'"),
        ("metaworld/mt30", "did you mean 'mt3'"),
        ("metaworld/reach-v3+reach-v3", "names reach-v3 twice"),
        ("tiny/point+", "names no task beside a '+'"),
        ("tiny/point+mirorr", "unknown tiny task 'mirorr'; did you mean 'mirror'"),
        ("tiny/point+recall", "point and recall cannot be one set: their observations or actions differ"),
        ("doom/basic+take-cover", "shows more than a vector of numbers"),
    ],
)
def test_a_set_that_cannot_be_is_refused_in_one_line(env_id: str, message: str) -> None:
    if env_id.startswith("doom"):
        pytest.importorskip("vizdoom")
    with pytest.raises(ConfigError) as error:
        registry.check_members(EnvConfig(id=env_id))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_copies_must_be_a_multiple_of_the_tasks() -> None:
    registry.check_columns(EnvConfig(id="metaworld/mt3", num_envs=6))
    with pytest.raises(ConfigError, match=r"env\.num_envs must be a multiple of the 3 tasks of metaworld/mt3, not 4"):
        registry.check_columns(EnvConfig(id="metaworld/mt3", num_envs=4))


def test_column_e_does_task_e_mod_k_and_shows_its_number() -> None:
    for column in range(4):
        env, alone = make(TWO, column=column), make(EnvConfig(id=f"tiny/{TWO.id[5:].split('+')[column % 2]}"))
        obs, own = env.reset(7), alone.reset(7)
        assert obs.tolist() == [*own.tolist(), float(column % 2 == 0), float(column % 2 == 1)]
        obs, reward, *_ = env.step(np.array([0.1], np.float32))
        own, own_reward, *_ = alone.step(np.array([0.1], np.float32))
        assert obs[:2].tolist() == own.tolist()
        assert reward == own_reward


def test_all_members_have_the_same_spec_which_survives_as_data() -> None:
    first, second = (make(TWO, column=column).spec for column in range(2))
    assert first == second
    assert first.tasks == first.own_tasks == ("point", "mirror")
    assert first.obs_shape == (4,)
    assert first.protocol["task"] == "point+mirror"
    assert spec_from_data(spec_to_data(first)) == first
    assert "tasks" not in spec_to_data(make(EnvConfig(id="tiny/point")).spec)


@pytest.mark.parametrize("column", range(2))
def test_a_member_passes_the_contract(column: int) -> None:
    check_env(lambda: make(TWO, column=column))


def test_a_member_of_metaworld_passes_the_contract() -> None:
    pytest.importorskip("metaworld")
    cfg = EnvConfig(id="metaworld/mt3", max_episode_steps=60)
    check_env(lambda: make(cfg, column=1), steps=20, pictures=False)


def test_the_expert_of_a_set_asks_each_tasks_own() -> None:
    pytest.importorskip("metaworld")
    cfg = EnvConfig(id="metaworld/mt3")
    envs = [make(cfg, column=column) for column in (2, 0, 1, 0)]
    obs = np.stack([env.reset(seed) for seed, env in enumerate(envs)])
    memory, rng = np.zeros((4, 0), np.float32), np.random.default_rng(0)
    expert = scripted_policy(cfg.id)
    found = expert.act(obs, memory, False, rng).action
    again = build_policy(expert.blueprint()).act(obs, memory, False, rng).action
    for row, column in enumerate((2, 0, 1, 0)):
        own = scripted_policy(metaworld_suite.SETS["mt3"][column])
        wanted = own.act(obs[row : row + 1, :39], memory[:1], False, rng).action[0]
        assert found[row].tolist() == again[row].tolist() == wanted.tolist()
    for env in envs:
        env.close()
