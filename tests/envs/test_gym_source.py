"""``gym/module:Name``: a class or a function of a module is an environment without being registered."""

import sys

import gymnasium
import numpy as np
import pytest

from roboloop.core.config import override, read_file, to_dict
from roboloop.core.errors import ConfigError, DataError, UserError
from roboloop.core.flags import parse_flags
from roboloop.core.vouched import vouched
from roboloop.envs import registry
from roboloop.envs.check import check_env
from roboloop.envs.config import EnvConfig
from roboloop.envs.gym.source import given, importable, name_of
from roboloop.envs.registry import make
from roboloop.run import trust
from roboloop.run.config import Experiment
from tests.cli.test_cli import roboloop
from tests.python.own_env import Steer, pendulum

OWN = "gym/tests.python.own_env"


def test_a_class_passes_the_contract_and_gives_pictures():
    check_env(lambda: make(EnvConfig(id=f"{OWN}:Steer", max_episode_steps=15)), steps=30, pictures=False)
    env = make(EnvConfig(id=f"{OWN}:Steer"))
    env.reset(0)
    assert env.render().tolist() == np.full((16, 16, 3), 7).tolist()


def test_the_limit_is_that_of_what_a_function_makes_or_of_the_config():
    assert make(EnvConfig(id=f"{OWN}:pendulum")).spec.max_episode_steps == 25
    assert make(EnvConfig(id=f"{OWN}:Steer")).spec.max_episode_steps == 1000
    assert make(EnvConfig(id=f"{OWN}:Steer", max_episode_steps=7)).spec.max_episode_steps == 7


def test_an_id_that_the_module_registers_goes_before_a_class_of_that_name():
    gymnasium.register("Steer", lambda: pendulum())
    try:
        assert make(EnvConfig(id=f"{OWN}:Steer")).spec.obs_shape == (3,)
    finally:
        del gymnasium.registry["Steer"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{OWN}:Stear", "did you mean 'Steer'"),
        (f"{OWN}:Needy", "missing a required argument: 'size'"),
        (f"{OWN}:nothing", "returned a int"),
        (f"{OWN}:np", "is no class and no function"),
        ("gym/no_such_module:Env", "No module named 'no_such_module'"),
        ("gym/not-a-module:Env", "is no name of a module"),
        ("gym/__main__:Gone", "give env= in Python"),
    ],
)
def test_what_cannot_be_made_is_one_line(name, message):
    with pytest.raises(ConfigError, match=message):
        make(EnvConfig(id=name))


def test_arguments_of_the_constructor_reach_it_by_class_by_id_and_by_flag():
    assert make(registry.config(f"{OWN}:Needy", kwargs={"size": 3})).spec.obs_shape == (2,)
    slow, fast = (make(registry.config("gym/Pendulum-v1", kwargs={"g": g})) for g in (0.0, 10.0))
    for env in (slow, fast):
        env.reset(3)
    assert slow.step(np.zeros(1))[0].tolist() != fast.step(np.zeros(1))[0].tolist()
    cfg = parse_flags(
        Experiment(), ["--env.kwargs.g", "9.5", "--env.id", "gym/Pendulum-v1", "--env.kwargs.n", "[1, 2]"]
    )
    assert cfg.env.kwargs == {"g": 9.5, "n": [1, 2]}
    assert override(Experiment(), to_dict(cfg)) == cfg


def test_a_number_with_an_exponent_is_one_in_flags_and_in_files(tmp_path):
    words = ["--env.id", "gym/Pendulum-v1", "--env.kwargs.g", "1e-3", "--env.kwargs.n", "[.5e2, -1E+2]"]
    flags = parse_flags(Experiment(), words).env.kwargs
    (tmp_path / "a.yaml").write_text("env: {id: gym/Pendulum-v1, kwargs: {g: 1e-3, n: [.5e2, -1E+2], name: 1e-3x}}\n")
    file = override(Experiment(), read_file(tmp_path / "a.yaml")).env.kwargs
    assert flags == {"g": 0.001, "n": [50.0, -100.0]}
    assert file == {**flags, "name": "1e-3x"}


def test_wrappers_are_put_around_it_the_innermost_first():
    wrappers = ("tests.python.own_env:twice", "tests.python.own_env:PlusOne")
    plain, wrapped = (make(registry.config(f"{OWN}:Steer", wrappers=some)) for some in ((), wrappers))
    assert (2 * plain.reset(0) + 1).tolist() == wrapped.reset(0).tolist()
    limit = {"max_episode_steps": 15, "wrappers": wrappers}
    check_env(lambda: make(registry.config(f"{OWN}:Steer", **limit)), steps=30, pictures=False)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kwargs": {"gravity": 1}}, r"cannot be made with env.kwargs .* unexpected keyword argument 'gravity'"),
        ({"kwargs": {"render_mode": "human"}}, "env.kwargs.render_mode is set by roboloop"),
        ({"kwargs": {"a b": 1}}, "config key 'env.kwargs' has a name that is none: 'a b'"),
        ({"kwargs": {"g": float("nan")}}, "config key 'env.kwargs.g' must be a finite number"),
        ({"wrappers": ["tests.python.own_env:PlusTwo"]}, "has no 'PlusTwo'"),
        (
            {"wrappers": ["tests.python.own_env:nothing"]},
            "env.wrappers 'tests.python.own_env:nothing' raised TypeError",
        ),
        ({"wrappers": ["builtins:type"]}, "must return a gymnasium.Env, not"),
    ],
)
def test_wrong_arguments_and_wrappers_are_one_line(keys, message):
    with pytest.raises(ConfigError, match=message):
        make(registry.config("gym/Pendulum-v1", **keys))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "message"),
    [
        ("gym/roboloop/tiny-point-v0", {"env_id": "gym/os:system"}, "is tiny/point here: give that id"),
        ("gym/HalfCheetah-v5", {"id": "x"}, r"env\.kwargs\.id is set by roboloop"),
        ("gym/HalfCheetah-v5", {"max_episode_steps": 3}, r"env\.max_episode_steps is the horizon"),
        ("gym/HalfCheetah-v5", {"xml_file": "/etc/passwd"}, "'gym/HalfCheetah-v5' cannot be made: ValueError"),
        ("gym/gymnasium.wrappers:TimeLimit", {"env": "x", "max_episode_steps": 3}, "TimeLimit is a wrapper"),
        ("gym/gymnasium.envs.mujoco:MujocoEnv", {"model_path": "x", "frame_skip": 1}, "cannot be made"),
    ],
)
def test_what_no_constructor_takes_is_one_line(env_id, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make(registry.config(env_id, kwargs=kwargs))


def test_a_package_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    for place in ("gym/phys2d/Pendulum-v0", "gym/gymnasium.envs.phys2d.pendulum:PendulumJaxEnv"):
        with pytest.raises(UserError, match="jax"):
            make(registry.config(place))


def test_arguments_that_a_saved_file_names_are_no_files_and_no_ids_of_other_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fifo").touch()
    trust.check_env(registry.config("gym/Pendulum-v1", kwargs={"mode": "human", "g": 3.0}), "config.yaml")
    for text in ("/etc/passwd", "../model.xml", "~/model.xml", "os:system", "fifo"):
        for kwargs in ({"a": text}, {"a": {"b": [text]}}):
            with pytest.raises(DataError, match=r"env\.kwargs\.a.*--trust"):
                trust.check_env(registry.config("gym/Pendulum-v1", kwargs=kwargs), "config.yaml")


def test_gymnasium_makes_no_other_task_of_ours_than_its_id_says():
    with pytest.raises(ConfigError, match="leave env_id out"):
        gymnasium.make("roboloop/tiny-point-v0", env_id="gym/Pendulum-v1")


def test_wrappers_that_a_saved_file_names_need_somebody_who_vouches_for_them():
    with pytest.raises(DataError, match=r"env\.wrappers 'os:abort'.*--trust"):
        trust.check_env(registry.config("gym/Pendulum-v1", wrappers=["os:abort"]), "config.yaml")


def test_envs_check_examines_a_class():
    done = roboloop("envs", "check", f"{OWN}:Steer", "--steps", "50")
    assert done.returncode == 0, done.stderr
    assert "ok: gym/tests.python.own_env:Steer" in done.stdout


def test_only_what_other_processes_can_import_has_a_name_for_them():
    assert importable(Steer) == "tests.python.own_env:Steer"
    assert importable(lambda: Steer()) is None
    assert name_of(lambda: Steer()) == "given"

    class Inner(Steer):
        pass

    assert (importable(Inner), name_of(Inner)) == (None, "Inner")
    with given({"Inner": Inner}), given({"Inner": Inner}):
        assert make(EnvConfig(id="gym/__main__:Inner")).spec.obs_shape == (2,)
        with pytest.raises(ConfigError, match="rename one of them"), given({"Inner": Steer}):
            pass
    with pytest.raises(ConfigError, match="give env= in Python"):
        make(EnvConfig(id="gym/__main__:Inner"))


HOSTILE = (
    f"{OWN}:Steer",
    "gym/roboloop.core.files:os.abort",
    "gym/roboloop.cli:main",
    "gym/gymnasium.envs.registration:pprint_registry",
    "gym/__main__:Mine+tests.python.own_env:Steer",
    "gym/Pendulum-v1+roboloop.cli:main",
    "gym/roboloop.envs.as_gymnasium:GymnasiumEnv",
    "gym/roboloop/tiny-point-v0",
    "gym/roboloop:roboloop/tiny-point-v0",
    "gym/GymV21Environment-v0",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_in_a_strangers_file_calls_nothing_that_nobody_vouches_for(name):
    with pytest.raises(DataError, match="--trust"):
        trust.check_env(EnvConfig(id=name), "config.yaml")
    with vouched.during([name]):
        trust.check_env(EnvConfig(id=name), "config.yaml")


def test_a_class_of_an_installed_package_is_used_without_being_typed():
    trust.check_env(EnvConfig(id="gym/gymnasium.envs.classic_control:PendulumEnv"), "config.yaml")
    assert make(EnvConfig(id="gym/gymnasium.envs.classic_control:PendulumEnv")).spec.obs_shape == (3,)


def test_words_of_a_call_are_forgotten_when_it_returns():
    with vouched.during(["a"]):
        vouched.add(["b"])
        with vouched.during(["c"], everything=True):
            assert "anything" in vouched
        assert all(word in vouched for word in "ab")
        assert "c" not in vouched
    assert not any(word in vouched for word in "abc")
