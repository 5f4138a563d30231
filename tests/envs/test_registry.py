"""Ids, names and messages of the registry."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from roboloop.core.errors import ConfigError, MissingExtra
from roboloop.core.resolve import resolve
from roboloop.envs import EnvConfig, known_ids, make, registry, task_name
from roboloop.envs.config import PictureEnvConfig
from roboloop.envs.dmc.suite import IDS as DMC
from roboloop.envs.doom.scenarios import SCENARIOS
from roboloop.envs.doom.suite import IDS as DOOM
from roboloop.envs.gym.suite import IDS as GYM
from roboloop.envs.headless import prefer_egl
from roboloop.envs.metaworld.suite import MT10, MetaWorldEnvConfig
from roboloop.envs.metaworld.suite import TASKS as METAWORLD
from roboloop.envs.suite import Suite

WITHOUT_IDS = Suite("mine", "roboloop.envs.tiny.world:make")
FUNCTIONS = ("make", "tasks", "expert", "serve", "check_reachable")


@pytest.mark.parametrize("name", registry.SUITES)
def test_each_record_has_the_name_of_its_row_and_functions_that_resolve(name: str) -> None:
    prefer_egl()
    suite = registry.find_suite(name)
    if any(importlib.util.find_spec(package) is None for package in suite.packages):
        pytest.skip(f"{name} is not installed")
    assert suite.name == name
    assert all(callable(resolve(made)) for made in (getattr(suite, part) for part in FUNCTIONS) if made)
    assert suite.config().id


@pytest.mark.parametrize("env_id", ["gym/CartPole-v1", "tiny/point"])
def test_an_environment_without_an_expert_names_the_suites_that_have_some(env_id: str) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"{env_id} has no scripted expert: there are experts for metaworld/\.\.\.",
    ):
        registry.scripted_policy(env_id)


def test_importing_the_package_imports_no_simulator() -> None:
    code = (
        "import sys, roboloop.envs as e; e.task_name('metaworld/3'); e.known_ids();"
        "simulators = ('mujoco', 'metaworld', 'dm_control', 'torch', 'gymnasium', 'vizdoom', 'cv2');"
        "print([m for m in simulators if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("metaworld/reach-v3", "reach-v3"),
        ("metaworld/9", "window-close-v3"),
        ("gym/HalfCheetah-v5", "HalfCheetah-v5"),
        ("HalfCheetah-v5", "HalfCheetah-v5"),
        ("dmc/walker-walk", "walker-walk"),
        ("dmc/ball_in_cup-catch", "ball_in_cup-catch"),
        ("gym/Meta-World/MT1", "Meta-World-MT1"),
        ("gym/ALE/Pong-v5", "ALE-Pong-v5"),
        ("doom/basic", "basic"),
        ("gym/my_package:Robot-v0", "my_package-Robot-v0"),
    ],
)
def test_a_task_has_a_short_name_that_is_safe_in_a_path(env_id: str, name: str) -> None:
    assert task_name(env_id) == name


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("metaworld/reech-v3", "did you mean 'reach-v3'"),
        ("metaworld/10", "unknown Meta-World task '10'"),
        ("metaword/reach-v3", "did you mean 'metaworld'"),
        ("reach-v3", "did you mean 'metaworld/reach-v3'"),
        ("gym/HalfCheeta-v5", "did you mean 'HalfCheetah-v5'"),
        ("gym/HalfCheetah-v99", "did you mean 'HalfCheetah-v"),
        ("dmc/walker-wlak", "did you mean 'walker-walk'"),
        ("panda/raech", "did you mean 'reach'"),
        ("doom/basik", "did you mean 'basic'"),
        ("dmc/", "names no task"),
    ],
)
def test_an_unknown_name_gives_one_line_with_the_nearest(env_id: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(EnvConfig(id=env_id))
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


def forget(monkeypatch: pytest.MonkeyPatch, package: str, *importers: str) -> None:
    """Make a package look as if it were not installed, also to modules that have imported it."""
    for name in [m for m in sys.modules if m.partition(".")[0] == package or m in importers]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("package", "env_id", "extra"),
    [
        ("dm_control", "dmc/walker-walk", "dmc"),
        ("vizdoom", "doom/basic", "doom"),
        ("cv2", "doom/basic", "doom"),
        ("ale_py", "gym/ALE/Pong-v5", "atari"),
        ("Box2D", "gym/LunarLander-v3", "box2d"),
        ("pybullet_data", "panda/reach", "panda"),
    ],
)
def test_a_missing_simulator_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, env_id: str, extra: str
) -> None:
    importers = ["roboloop.envs.doom.world", "roboloop.envs.gym.atari"]
    importers += [m for m in sys.modules if m.startswith(("gymnasium.envs.box2d", "roboloop.envs.panda."))]
    forget(monkeypatch, package, *importers)
    if package == "cv2":
        pytest.importorskip("vizdoom")
    with pytest.raises(MissingExtra, match=rf"pip install 'roboloop\[{extra}\]'"):
        make(EnvConfig(id=env_id))


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        (EnvConfig(action_repeat=0), "env.action_repeat must be at least 1, got 0"),
        (EnvConfig(num_envs=-1), "env.num_envs must be at least 1, got -1"),
        (EnvConfig(max_episode_steps=0), "env.max_episode_steps must be at least 1"),
        (PictureEnvConfig(image_size=(72,)), "env.image_size must be height and width"),  # type: ignore[arg-type]
        (PictureEnvConfig(image_size=(0, 84)), "env.image_size must be height and width"),
        (MetaWorldEnvConfig(reward_version="v3"), "one of v1, v2, got 'v3'"),
        (MetaWorldEnvConfig(goal_mode="randon"), "did you mean 'random'"),
    ],
)
def test_impossible_values_are_refused_in_one_line(cfg: EnvConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(cfg)


def test_the_static_names_are_those_of_the_simulators() -> None:
    prefer_egl()
    env_dict = pytest.importorskip("metaworld.env_dict")
    assert set(METAWORLD) == set(env_dict.ENV_CLS_MAP)
    assert list(MT10) == list(env_dict.MT10_V3)
    suite = pytest.importorskip("dm_control.suite")
    assert set(DMC) == {f"{domain}-{task}" for domain, task in suite.ALL_TASKS}


def test_the_doom_tasks_are_those_that_the_wheel_ships() -> None:
    assert set(DOOM) == set(SCENARIOS)
    vizdoom = pytest.importorskip("vizdoom")
    assert {f"{scenario.config}.cfg" for scenario in SCENARIOS.values()} <= set(vizdoom.configs)
    assert {f"{scenario.config}.wad" for scenario in SCENARIOS.values()} <= set(vizdoom.wads)


def test_known_gymnasium_ids_exist() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    assert {name for name in GYM if not name.startswith("ALE/")} <= set(gymnasium.registry)


def test_known_ids_lists_every_suite() -> None:
    ids = known_ids()
    assert {env_id.partition("/")[0] for env_id in ids} == set(registry.known_suites())
    assert len(ids) == len(set(ids))


def test_a_suite_that_lists_no_ids_is_no_fault(monkeypatch) -> None:
    before = known_ids()
    monkeypatch.setitem(registry.SUITES, "mine", "tests.envs.test_registry:WITHOUT_IDS")
    assert known_ids() == before


def test_a_plug_in_that_is_broken_is_left_out_of_lists_and_named_when_it_is_asked_for(monkeypatch) -> None:
    before = known_ids()
    points = {**registry.entry_points(registry.GROUP), "broken": "tests.envs.raises_when_imported:SUITE"}
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert known_ids() == before
    with pytest.raises(ConfigError, match=r"RuntimeError at .*raises_when_imported.py:3: no licence"):
        make(EnvConfig(id="broken/reach"))
