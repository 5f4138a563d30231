"""What a sweep file asks for becomes runs with stable names, all of them checked before any is started."""

from pathlib import Path

import pytest
import yaml

from roboloop import cli
from roboloop.core.errors import ConfigError
from roboloop.launch.sweep import Planned, check_existing, expand, is_text, nested, read_sweep, variant_name
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "cartpole-lr.yaml"


@pytest.fixture
def runs(tmp_path):
    """Return a function from a sweep's keys to its runs."""

    def make(**keys) -> list[Planned]:
        file = tmp_path / f"{keys.pop('file', 'try')}.yaml"
        file.write_text(yaml.safe_dump(keys, sort_keys=False))
        return expand(read_sweep(file))

    return make


def names(planned: list[Planned]) -> list[str]:
    return [f"{run.variant}/{run.seed}" for run in planned]


def test_axes_are_combined_and_the_first_seed_of_all_variants_comes_first(runs):
    planned = runs(base="cartpole", axes={"algo.lr": [0.001, 0.01], "algo.epochs": [4, 8]}, seeds=[5, 3])
    assert names(planned) == [
        "lr=0.001,epochs=4/5", "lr=0.001,epochs=8/5", "lr=0.01,epochs=4/5", "lr=0.01,epochs=8/5",
        "lr=0.001,epochs=4/3", "lr=0.001,epochs=8/3", "lr=0.01,epochs=4/3", "lr=0.01,epochs=8/3",
    ]  # fmt: skip
    run = planned[3]
    assert (run.config.algo.lr, run.config.algo.epochs, run.config.seed) == (0.01, 8, 5)
    assert run.config.experiment == "try/lr=0.01,epochs=8"
    assert run.path == Path("runs/try/lr=0.01,epochs=8/CartPole-v1/5")
    assert run.config.algo.rollout_steps == 128  # the recipe's own


def test_values_of_a_zip_group_go_together(runs):
    planned = runs(
        base="cartpole",
        axes={"algo.gamma": [0.9, 0.99]},
        zip=[{"algo.lr": [0.001, 0.01], "algo.epochs": [8, 4]}],
    )
    assert names(planned) == [
        "gamma=0.9,lr=0.001,epochs=8/0", "gamma=0.9,lr=0.01,epochs=4/0",
        "gamma=0.99,lr=0.001,epochs=8/0", "gamma=0.99,lr=0.01,epochs=4/0",
    ]  # fmt: skip


def test_what_is_excluded_does_not_run(runs):
    axes = {"algo.lr": ["1e-3", "1e-2"], "algo.epochs": [4, 8]}
    exclude = [{"algo.lr": "1e-2", "algo.epochs": 8}, {"seed": 1, "algo.epochs": 4}]
    planned = runs(base="cartpole", axes=axes, exclude=exclude, seeds=2)
    assert names(planned) == ["lr=0.001,epochs=4/0", "lr=0.001,epochs=8/0", "lr=0.01,epochs=4/0", "lr=0.001,epochs=8/1"]


def test_what_cannot_be_can_be_excluded(runs):
    assert names(runs(base="cartpole", axes={"algo.epochs": [4, 0]}, exclude=[{"algo.epochs": 0}])) == ["epochs=4/0"]
    axes = {"algo.epochs": [4, 8], "algo.minibatches": [4, 3]}  # 8 envs x 128 steps do not split into 3
    with pytest.raises(ConfigError, match="sweep try, epochs=4,minibatches=3: "):
        runs(base="cartpole", axes=axes, exclude=[{"algo.epochs": 8, "algo.minibatches": 3}])
    by_seed = [{"seed": seed, "algo.minibatches": 3} for seed in (0, 1)]
    planned = runs(base="cartpole", axes=axes, exclude=by_seed, seeds=2)
    assert names(planned) == [f"epochs={epochs},minibatches=4/{seed}" for seed in (0, 1) for epochs in (4, 8)]
    with pytest.raises(ConfigError, match="sweep try, epochs=4,minibatches=3: "):
        runs(base="cartpole", axes=axes, exclude=by_seed[:1], seeds=2)


def test_a_run_keeps_its_name_when_the_sweep_grows(runs):
    few = runs(base="cartpole", axes={"algo.lr": [0.001]}, seeds=[0])
    many = runs(base="cartpole", axes={"algo.lr": [0.1, "1e-3", 0.003]}, seeds=[2, 0])
    assert {run.path: run.config for run in many}.items() >= {run.path: run.config for run in few}.items()


def test_a_number_has_one_name_however_it_is_written(runs):
    (a,), (b,) = (runs(base="cartpole", axes={"algo.lr": [text]}) for text in ("3e-4", 0.0003))
    assert (a.variant, a.config) == (b.variant, b.config)
    with pytest.raises(ConfigError, match=r"would both be runs/try/lr=0\.0003"):
        runs(base="cartpole", axes={"algo.lr": ["3e-4", 0.0003]})


def test_an_environment_is_the_task_of_its_runs_and_no_variant(runs):
    planned = runs(base="reach", axes={"env.id": ["metaworld/reach-v3", "metaworld/push-v3"], "algo.gamma": [0.9]})
    assert [str(run.path) for run in planned] == ["runs/try/gamma=0.9/reach-v3/0", "runs/try/gamma=0.9/push-v3/0"]


def test_an_algorithm_can_be_an_axis(runs):
    planned = runs(axes={"algo.name": ["sac", "ppo"]}, set={"env.id": "tiny/point"})
    assert [run.config.algo.name for run in planned] == ["sac", "ppo"]
    (run,) = runs(axes={"algo": [{"name": "ppo", "lr": 0.01}]}, set={"env": {"id": "tiny/point"}})
    assert (run.config.algo.name, run.config.algo.lr) == ("ppo", 0.01)


def test_names_are_short_readable_and_safe():
    assert variant_name({"algo.hidden": [256, 256], "eval.background": True}) == "hidden=256x256,background=true"
    assert variant_name({"env.seed": 1, "eval.seed": 2}) == "env.seed=1,eval.seed=2"
    assert variant_name({"device": "cuda:0/../.."}) == "device=cuda-0-..-.."
    assert variant_name({}) == variant_name({"env.id": "tiny/point"}) == "base"
    long = {f"algo.key{i}": 0.123456 for i in range(9)}
    assert len(variant_name(long)) == 80
    assert variant_name(long) != variant_name({**long, "algo.key8": 0.2})


def test_a_base_can_be_a_file_beside_the_sweep(runs, tmp_path):
    (tmp_path / "mine.yaml").write_text("{steps: 77, env: {id: tiny/point}}")
    (run,) = runs(base="mine.yaml", set={"algo.gamma": 0.5})
    assert (run.config.steps, run.config.env.id, run.config.algo.gamma) == (77, "tiny/point", 0.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"axis": {}}, "unknown sweep key 'axis'; did you mean 'axes'?"),
        ({"axes": {"algo.lrr": [1]}}, "unknown config key 'algo.lrr'; did you mean 'algo.lr'?"),
        ({"axes": {"algo.epochs": [4, "many"]}}, "config key 'algo.epochs' must be int, not 'many'"),
        ({"axes": {"algo.epochs": [4, 0]}}, "sweep try, epochs=0: epochs must be at least 1"),
        ({"axes": {"algo.epochs": 4}}, "axis 'algo.epochs' must be a list"),
        ({"axes": {"algo": {"epochs": 4}}}, "axis 'algo.epochs' must be a list"),
        ({"axes": {"algo": {}}}, "axis 'algo' must be a list"),
        ({"axes": {"algo.lr": {"low": 1, "high": 2}}}, "axis 'algo.lr' must be a list"),
        ({"axes": {"algo.lr": [1.0], "algo": {"lr": [2.0]}}}, "config key 'algo.lr' is given twice"),
        ({"axes": {"algo.lr": [10**400]}}, "config key 'algo.lr' is too large: a float ends at 1.8e\\+308"),
        ({"axes": {"seed": [4]}}, "use seeds"),
        ({"axes": {"experiment": ["a"]}}, "'experiment' is set by the sweep: use name"),
        ({"axes": {"algo.lr": [1.0]}, "zip": [{"algo.lr": [2.0]}]}, "'algo.lr' is no axis: it is given twice"),
        ({"zip": [{"algo.lr": [1.0], "algo.epochs": [1, 2]}]}, "equally many values: algo.lr 1, algo.epochs 2"),
        ({"axes": {"algo.lr": [1.0]}, "exclude": [{"algo.l": 1.0}]}, "'algo.l' is not swept; did you mean 'algo.lr'?"),
        ({"axes": {"algo.lr": [1.0]}, "exclude": [{"algo": {"l": 1.0}}]}, "'algo.l' is not swept; did you mean"),
        ({"axes": {"algo.lr": [1.0]}, "exclude": [{"algo.lr": 2.0}]}, "matches nothing"),
        ({"axes": {"algo.lr": [1.0]}, "exclude": [{"algo.lr": 1.0}]}, "everything is excluded"),
        ({"seeds": []}, "'seeds' must be"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"seeds": [True]}, "'seeds' must be"),
        ({"set": {"seed": 5}}, "'seed' is set by the sweep: use seeds"),
        ({"base": {"seed": 5}}, "'seed' is set by the sweep: use seeds"),
        ({"set": {"experiment": "x"}}, "'experiment' is set by the sweep: use name"),
        ({"name": "../x"}, "plain word"),
        ({"name": 3}, "must be a name"),
        ({"goal": "up"}, "'max' or 'min'"),
        ({"base": "cartpoel"}, "did you mean 'cartpole'?"),
        ({"base": "nowhere.yaml"}, "does not exist"),
        ({"zip": {}}, "list of config keys"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(runs, keys, message):
    with pytest.raises(ConfigError, match=message):
        runs(**{"base": "cartpole", **keys})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--axis algo.gamma 0.9 --axis algo.gamma 0.99", "--axis algo.gamma is given twice"),
        ("--axis eval.every-steps 1 --axis eval.every_steps 2", "--axis eval.every_steps is given twice"),
        ("--seeds 0 -5", "none below 0, not [0, -5]"),
        ("--axis sample.real_time off sometimes", "not 'sometimes'"),
        (f"--axis algo.gamma {10**400}", "config key 'algo.gamma' is too large"),
        ("--axis device cpu cuda:99", "'device' must be one that is here, not 'cuda:99'"),
        ("--device gpu", "'device' must be cpu, cuda or another device of torch, not 'gpu'"),
        ("extra", "roboloop: unexpected word 'extra': config keys are given as --KEY VALUE"),
    ],
)
def test_flags_that_cannot_be_are_said_before_anything_starts(tmp_path, capsys, words, message):
    assert cli.main(["sweep", "cartpole", "--runs-dir", str(tmp_path), *words.split(), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


def test_values_of_a_key_that_takes_text_are_words(tmp_path, capsys):
    words = "--env.num-envs 1 --axis sample.real_time off process --axis algo.gamma 0.9"
    assert cli.main(["sweep", "reach", "--runs-dir", str(tmp_path), *words.split(), "--dry-run"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert ["real_time=off,gamma=0.9" in listed[0], "real_time=process,gamma=0.9" in listed[1]] == [True, True]
    config = Experiment()
    takes = {
        key: is_text(config, key) for key in ("device", "sample.real_time", "steps", "observers", "algo", "no.such")
    }
    assert [key for key, text in takes.items() if text] == ["device", "sample.real_time"]


def test_an_argument_of_an_environment_can_be_an_axis_beside_the_others(tmp_path, capsys, runs):
    words = "--env.id gym/Pendulum-v1 --axis env.kwargs.g 9.81 1e-3 --seeds 0 --dry-run"
    assert cli.main(["sweep", "--runs-dir", str(tmp_path), *words.split()]) == 0
    assert ["g=9.81" in line or "g=0.001" in line for line in capsys.readouterr().out.splitlines()[:2]] == [True, True]
    planned = runs(base={"env": {"id": "gym/Pendulum-v1", "kwargs": {"a": 1}}}, axes={"env.kwargs.g": [9.81, "1e-3"]})
    assert [run.config.env.kwargs for run in planned] == [{"a": 1, "g": 9.81}, {"a": 1, "g": 0.001}]


def test_dotted_keys_and_sections_mean_the_same():
    assert nested({"algo": {"name": "ppo"}, "algo.lr": 1, "steps": 2}) == {"algo": {"name": "ppo", "lr": 1}, "steps": 2}
    with pytest.raises(ConfigError, match="twice"):
        nested({"algo": 1, "algo.lr": 2})
    both = {"env.panda.hz": 5, "env": {"panda": {"hold_s": 1}, "legged.push_n": 2}}
    assert nested(both) == {"env": {"panda": {"hz": 5, "hold_s": 1}, "legged": {"push_n": 2}}}


@pytest.mark.parametrize(
    ("in_dots", "in_sections"),
    [
        (
            {"base": {"env.id": "tiny/point", "algo.name": "ppo"}},
            {"base": {"env": {"id": "tiny/point"}, "algo": {"name": "ppo"}}},
        ),
        ({"axes": {"algo.lr": [0.1, 0.2]}}, {"axes": {"algo": {"lr": [0.1, 0.2]}}}),
        (
            {"axes": {"eval.every_steps": [100, 200], "eval.episodes": [3]}},
            {"axes": {"eval": {"every-steps": [100, 200], "episodes": [3]}}},
        ),
        (
            {"zip": [{"algo.lr": [0.1, 0.2], "algo.epochs": [4, 8]}]},
            {"zip": [{"algo": {"lr": [0.1, 0.2], "epochs": [4, 8]}}]},
        ),
        (
            {"axes": {"algo.lr": [0.1, 0.2]}, "exclude": [{"algo.lr": 0.1, "seed": 0}], "seeds": 2},
            {"axes": {"algo.lr": [0.1, 0.2]}, "exclude": [{"algo": {"lr": 0.1}, "seed": 0}], "seeds": 2},
        ),
    ],
)
def test_a_sweep_file_may_have_dotted_keys_or_sections(runs, in_dots, in_sections):
    assert runs(**{"base": "cartpole", **in_dots}) == runs(**{"base": "cartpole", **in_sections})


def test_sections_that_are_values_of_an_axis_can_be_excluded(runs):
    kinds = [{"name": "sac"}, {"name": "ppo", "lr": 0.01}]
    (run,) = runs(axes={"algo": kinds}, exclude=[{"algo": {"name": "sac"}}], set={"env.id": "tiny/point"})
    assert (run.config.algo.name, run.config.algo.lr) == ("ppo", 0.01)
    with pytest.raises(ConfigError, match="matches nothing"):
        runs(axes={"algo": kinds}, exclude=[{"algo": {"name": "ppo"}}], set={"env.id": "tiny/point"})


def test_sections_that_a_flag_makes_values_of_an_axis_can_be_excluded(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text("{set: {env.id: tiny/point}, exclude: [{algo: {name: sac}}]}")
    words = ["--axis", "algo", "{name: sac}", "{name: ppo}", "--runs-dir", str(tmp_path), "--dry-run"]
    assert cli.main(["sweep", str(tmp_path / "s.yaml"), *words]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path}/s/algo=ppo/point/0"


def test_a_run_that_was_begun_with_another_config_is_named(runs, tmp_path):
    keys = {"base": "cartpole", "set": {"runs_dir": str(tmp_path / "runs"), "steps": 1000}, "axes": {"algo.lr": [0.01]}}
    (run,) = runs(**keys)
    check_existing(run)
    RunDir.create(run.config, []).close()
    check_existing(run)
    longer = {**keys, "set": {**keys["set"], "steps": 2000, "checkpoint.keep_last": 9}}
    check_existing(runs(**longer)[0])
    for change, message in (
        ({"steps": 500}, "has steps 1000, the sweep says 500"),
        ({"algo.gamma": 0.5}, "algo.gamma"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_existing(runs(**{**keys, "set": {**keys["set"], **change}})[0])


def test_the_example_is_a_sweep():
    planned = expand(read_sweep(EXAMPLE))
    assert names(planned)[:3] == ["lr=0.0001,epochs=10/0", "lr=0.0003,epochs=10/0", "lr=0.001,epochs=4/0"]
    assert len(planned) == 9
