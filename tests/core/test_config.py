import json

import pytest

from roboloop.core.config import override, read_file, to_dict
from roboloop.core.errors import ConfigError
from roboloop.core.flags import keys_of, parse_flags
from roboloop.run.config import Experiment


def test_a_config_survives_the_way_to_a_file_and_back():
    config = override(Experiment(), {"seed": 3, "algo": {"hidden": [400, 400, 400], "alpha": 0.1}})
    assert override(Experiment(), json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sed": 1}, "unknown config key 'sed'; did you mean 'seed'?"),
        ({"algo": {"gama": 1}}, "unknown config key 'algo.gama'; did you mean 'algo.gamma'?"),
        (
            {"algo": {"learning_rate": 1}},
            "unknown config key 'algo.learning_rate'; did you mean 'algo.actor_lr' or 'algo.critic_lr' or "
            "'algo.alpha_lr'?",
        ),
        (
            {"trackers": "tensorboard"},
            "config key 'trackers' must be a list such as ['tensorboard'], not 'tensorboard'",
        ),
        ({"algo": "ppo"}, "config key 'algo' is a section, not a value: 'ppo'; did you mean 'algo.name'?"),
        ({"seed": "x"}, "config key 'seed' must be int, not 'x'"),
        ({"seed": True}, "config key 'seed' must be int, not True"),
        ({"algo": {"gamma": "high"}}, "config key 'algo.gamma' must be float, not 'high'"),
        ({"algo": 3}, "config key 'algo' is a section, not a value: 3"),
        ({"update": {"at": "night"}}, "config key 'update.at' must be one of 'steps', 'episode', 'slack', not 'night'"),
        ({"algo": {"gamma": 10**400}}, "config key 'algo.gamma' is too large: a float ends at 1.8e+308"),
        ({"algo": {"gamma": -(10**400)}}, "config key 'algo.gamma' is too large: a float ends at 1.8e+308"),
        ({"algo": {"hidden": [1.5]}}, "config key 'algo.hidden' must be int, not 1.5"),
        ({"algo": {"gamma": ".nan"}}, "config key 'algo.gamma' must be float, not '.nan'"),
        ({"algo": {"gamma": float("nan")}}, "config key 'algo.gamma' must be a finite number, not nan"),
        ({"algo": {"reward_scale": float("inf")}}, "config key 'algo.reward_scale' must be a finite number, not inf"),
        (
            {"algo": {"n_step": 2**63}},
            "config key 'algo.n_step' must lie between -9007199254740992 and 9007199254740992, not 9223372036854775808",
        ),
        ({"observers": ["a\nb"]}, "config key 'observers' must be text without control characters, not 'a\\nb'"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(data, message):
    with pytest.raises(ConfigError) as error:
        override(Experiment(), data)
    assert str(error.value) == message


def test_a_number_that_is_longer_than_python_prints_is_described():
    with pytest.raises(ConfigError, match=r"'seed' must lie between .*, not a number of about 5001 digits"):
        override(Experiment(), {"seed": 10**5000})


def test_a_name_that_is_a_list_names_those_that_there_are():
    with pytest.raises(ConfigError, match=r"'algo.name' must be a name, not \[\]"):
        override(Experiment(), {"algo": {"name": []}})


def test_only_a_key_that_says_so_may_be_infinite():
    assert override(Experiment(), {"update": {"per_step": float("inf")}}).update.per_step == float("inf")
    with pytest.raises(ConfigError, match="finite"):
        parse_flags(Experiment(), ["--checkpoint.every-s", "inf"])


def test_yaml_numbers_that_read_as_text_are_still_numbers(tmp_path):
    (tmp_path / "c.yaml").write_text("algo: {actor_lr: 3e-4}\nsteps: 1.0e+6\n")
    config = override(Experiment(), read_file(tmp_path / "c.yaml"))
    assert (config.algo.actor_lr, config.steps) == (3e-4, 1_000_000)


def test_a_plain_off_in_yaml_is_the_word(tmp_path):
    (tmp_path / "c.yaml").write_text("sample: {real_time: off}\n")
    assert override(Experiment(), read_file(tmp_path / "c.yaml")).sample.real_time == "off"
    (tmp_path / "c.yaml").write_text("sample: {real_time: on}\n")
    with pytest.raises(ConfigError, match=r"'sample.real_time' must be one of .*, not True"):
        override(Experiment(), read_file(tmp_path / "c.yaml"))


def test_json_and_yaml_files_give_the_same_config(tmp_path):
    (tmp_path / "c.yaml").write_text("env: {id: metaworld/3}\n")
    (tmp_path / "c.json").write_text('{"env": {"id": "metaworld/3"}}')
    assert read_file(tmp_path / "c.yaml") == read_file(tmp_path / "c.json")


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2\n", "a: b: c"])
def test_a_malformed_file_is_one_line(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_file(tmp_path / "c.yaml")
    assert "\n" not in str(error.value)


def test_flags_override_and_bad_flags_are_one_line():
    assert parse_flags(Experiment(), ["--algo.hidden", "64", "64", "--seed", "5"]).algo.hidden == (64, 64)
    with pytest.raises(ConfigError, match=r"^unknown option --algo.gama; did you mean '--algo.gamma'\?$"):
        parse_flags(Experiment(), ["--algo.gama", "1"])
    with pytest.raises(ConfigError, match=r"^option --seed must be a whole number, not 'abc'$") as error:
        parse_flags(Experiment(), ["--seed", "abc"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["extra", "more"], "unexpected word 'extra': config keys are given as --KEY VALUE"),
        (["--seed", "1", "2"], "unexpected word '2': config keys are given as --KEY VALUE"),
        (["-x", "1"], "unknown option -x"),
        (["--no-seed"], "unknown option --no-seed; did you mean '--seed'?"),
        (
            ["--algo.learning-rate", "1"],
            "unknown option --algo.learning-rate; did you mean '--algo.actor-lr' or '--algo.critic-lr' or "
            "'--algo.alpha-lr'?",
        ),
        (["--eval.background", "maybe"], "option --eval.background must be true or false, not 'maybe'"),
        (["--no-tensorboard"], "unknown option --no-tensorboard; did you mean '--trackers'?"),
        (["--wandb", "True"], "unknown option --wandb; did you mean '--trackers'?"),
        (["word", "--sed", "1"], "unknown option --sed; did you mean '--seed'?"),
        (["--seed"], "option --seed needs a value"),
        (["--seed", "abc"], "option --seed must be a whole number, not 'abc'"),
    ],
)
def test_a_bad_flag_is_named_in_one_line(flags, message):
    with pytest.raises(ConfigError) as error:
        parse_flags(Experiment(), flags)
    assert str(error.value) == message


def test_flags_read_switches_none_scientific_numbers_and_sections_by_name():
    config = parse_flags(Experiment(), ["--eval.background", "True", "--steps", "1e6", "--algo.alpha", "none"])
    assert (config.eval.background, config.steps, config.algo.alpha) == (True, 1_000_000, None)
    assert parse_flags(config, ["--eval.no-background"]).eval.background is False
    assert parse_flags(Experiment(), ["--trackers", "--seed", "1"]).trackers == ()
    assert parse_flags(Experiment(), ["--algo.lr=1e-3", "--algo.name=ppo"]).algo.lr == 1e-3
    assert (
        parse_flags(Experiment(), ["--algo.name", "lfgp", "--algo.schedule.name", "uniform"]).algo.schedule.name
        == "uniform"
    )
    assert parse_flags(Experiment(), ["--algo.target-entropy", "-3"]).algo.target_entropy == -3


def test_every_config_key_has_a_help_text():
    from roboloop.algos import registry

    for name in registry.known():
        for key in keys_of(override(Experiment(), {"algo": {"name": name}})):
            assert key.about, key.flag


def test_impossible_values_are_refused_before_anything_is_made():
    for bad in ({"steps": 0}, {"seed": -1}, {"update": {"per_step": -1}}, {"experiment": "../x"}):
        with pytest.raises(ConfigError):
            override(Experiment(), bad).check()
