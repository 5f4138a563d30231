"""EnvPool's ports: the whole contract although a pool is seeded only once, and a plain word about what they lack."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from roboloop.core.errors import ConfigError, MissingExtra
from roboloop.envs import EnvConfig, make, registry, scripted_policy, task_name
from roboloop.envs.check import check_env
from roboloop.envs.dmc.suite import IDS as DMC
from roboloop.envs.envpool.suite import IDS as ENVPOOL
from roboloop.envs.metaworld.suite import TASKS as METAWORLD

installed = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="roboloop[envpool] is not installed")


def test_without_envpool_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "roboloop.envs.envpool.world", raising=False)
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtra, match=r"pip install 'roboloop\[envpool\]'"):
        make(EnvConfig(id="envpool/gym/HalfCheetah-v5"))


@installed
@pytest.mark.parametrize(
    "env_id",
    ["gym/HalfCheetah-v5", "gym/Hopper-v5", "metaworld/reach-v3", "gym/CartPole-v1"],
)
def test_ports_pass_the_contract(env_id: str) -> None:
    cfg = EnvConfig(id=f"envpool/{env_id}", max_episode_steps=40)
    check_env(lambda: make(cfg), steps=12, pictures=False)


@installed
def test_the_observations_of_dm_control_become_one_vector() -> None:
    env = make(EnvConfig(id="envpool/dmc/walker-walk", max_episode_steps=3))
    first = env.reset(4)
    assert (first.shape, first.dtype) == ((24,), np.float32)
    ends = [env.step(np.zeros(6))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    assert env.reset(4).tobytes() == first.tobytes() != env.reset(5).tobytes()


@installed
def test_every_task_of_metaworld_and_dm_control_has_a_port() -> None:
    import envpool

    from roboloop.envs.envpool.world import their_id

    known = set(envpool.list_all_envs())
    assert {their_id(f"metaworld/{task}") for task in METAWORLD} <= known
    assert {their_id(f"dmc/{task}") for task in DMC} <= known
    assert {their_id(task) for task in ENVPOOL} <= known
    assert their_id("metaworld/0") == "MetaWorld/Reach-v3"
    assert their_id("dmc/ball_in_cup-catch") == "BallInCupCatch-v1"


@installed
@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("envpool/doom/basic", "stands in for metaworld, gym and dmc"),
        ("envpool/metaworld/rach-v3", "did you mean 'reach-v3'"),
        ("envpool/dmc/walker-wlak", "did you mean 'WalkerWalk-v1'"),
        ("envpool/gym/CarRacing-v3", "vectors only"),
    ],
)
def test_what_has_no_port_is_refused_in_one_line(env_id: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(EnvConfig(id=env_id))


@installed
@pytest.mark.parametrize("changes", [{"reward_version": "v1"}, {"goal_mode": "fixed"}])
def test_what_the_port_of_metaworld_cannot_do_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"has no env\.\w+, it is for metaworld"):
        registry.config("envpool/metaworld/reach-v3", **changes)


@installed
def test_pictures_are_refused_because_its_renderer_would_end_the_process() -> None:
    env = make(EnvConfig(id="envpool/gym/Hopper-v5"))
    env.reset(0)
    with pytest.raises(ConfigError, match="no pictures"):
        env.render()


@installed
def test_the_protocol_says_whose_simulator_it_is_and_seeds_may_be_large() -> None:
    env = make(EnvConfig(id="envpool/metaworld/reach-v3"))
    assert env.spec.protocol["suite"] == "envpool 1.2.5"
    assert (env.spec.protocol["task"], env.spec.max_episode_steps) == ("MetaWorld/Reach-v3", 500)
    assert task_name("envpool/metaworld/reach-v3") == "metaworld-reach-v3"
    assert env.reset(2**40 + 1)[36:].any()  # the goal is in view


@installed
@pytest.mark.filterwarnings("ignore:Constant")
def test_the_expert_of_the_original_solves_the_port() -> None:
    pytest.importorskip("metaworld", reason="roboloop[metaworld] is not installed")
    env, expert, rng = (
        make(EnvConfig(id="envpool/metaworld/reach-v3")),
        scripted_policy("reach-v3"),
        np.random.default_rng(0),
    )
    obs, success = env.reset(1), 0.0
    for _ in range(150):
        action = expert.act(obs[None], np.zeros((1, 0), np.float32), False, rng).action[0]
        obs, _, terminated, truncated, info = env.step(action)
        assert not terminated
        assert not truncated
        success = max(success, info["success"])
    assert success == 1.0
