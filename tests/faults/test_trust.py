"""A run or a dataset from a stranger is data: no verb runs code that it names, or calls an address that it names."""

import json
import os
import socket
import subprocess
import sys

import pytest
import yaml

from roboloop.cli import main
from roboloop.core.errors import DataError
from roboloop.core.sealed import seal_text
from roboloop.core.vouched import vouched
from roboloop.envs import registry
from roboloop.launch.plan import command_of
from roboloop.run import checkpoint, trust
from roboloop.track.read import SWEEP
from tests.run.helpers import train


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file that exists once a stranger's code has run; modules that make it are importable."""
    path = tmp_path / "ran"
    code = f"open({str(path)!r}, 'w').close()\n"
    (tmp_path / "code").mkdir()
    for name in ("stranger", "yaml_stranger"):
        (tmp_path / "code" / f"{name}.py").write_text(code + "class Watch:\n    def on_episode(self, facts): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    return path


@pytest.fixture
def hostile(tiny):
    """Make a run whose config says something else, with a digest that fits: a stranger can compute it too.

    ``forged`` are keys that its checkpoints say too; ``trained`` is how the run was trained.
    """

    def make(trained=None, forged=None, **changes):
        path = train(tiny(**(trained or {})), crash_after=250)
        changes |= forged or {}
        data = yaml.safe_load((path / "config.yaml").read_text())
        for key, value in changes.items():
            *sections, name = key.split("__")
            section = data
            for part in sections:
                section = section[part]
            section[name] = value
        (path / "config.yaml").write_bytes(seal_text(yaml.safe_dump(data, sort_keys=False)))
        for manifest in path.glob("checkpoints/*/manifest.json") if forged else ():
            body = json.loads(manifest.read_text())["body"]
            body["config"] |= {key.replace("__", "."): value for key, value in forged.items()}
            manifest.write_text(json.dumps({"sha256": checkpoint._digest(body), "body": body}))
        return path

    return make


VERBS = (
    ["train", "--resume", "{run}"],
    ["train", "--fork", "{run}", "--at", "200", "--experiment", "fork"],
    ["eval", "{run}", "--episodes", "1"],
    ["eval", "{run}", "--episodes", "1", "--checkpoint", "all"],
    ["record", "{run}", "--episodes", "1"],
    ["export", "{run}", "--onnx", "{tmp}/p.onnx"],
    ["train", "--start", "{run}", "--experiment", "next", "--runs-dir", "{tmp}/next"],
    ["runs", "{run}"],
    ["report", "{run}", "--out", "{tmp}/report.html"],
    ["plot", "{run}", "--out", "{tmp}/plot.png"],
)


OURS_BELOW_GYM = {"env__id": "gym/roboloop/tiny-point-v0", "env__kwargs": {"env_id": "gym/stranger:Pendulum-v1"}}


@pytest.mark.parametrize(
    "changes", [{"observers": ["stranger:Watch"]}, {"env__id": "gym/stranger:Pendulum-v1"}, OURS_BELOW_GYM], ids=str
)
def test_code_that_a_run_names_is_not_imported_by_any_verb(hostile, mark, tmp_path, capsys, changes):
    path = hostile(**changes)
    for verb in VERBS:
        words = [word.format(run=path, tmp=tmp_path) for word in verb]
        code = main(words)
        assert not mark.exists(), words
        assert code in (0, 2), words
    assert "Traceback" not in capsys.readouterr().err


def test_the_line_names_what_is_not_trusted_and_how_to_use_it(hostile, mark, capsys):
    path = hostile(observers=["stranger:Watch"])
    assert main(["train", "--resume", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "observers 'stranger:Watch'" in line
    assert "--trust" in line


def test_with_trust_or_when_it_is_typed_the_code_is_used(hostile, mark):
    path = hostile(observers=["stranger:Watch"])
    assert main(["train", "--resume", str(path), "--trust"]) == 0
    assert mark.exists()
    mark.unlink()
    sys.modules.pop("stranger")
    again = ["train", "--resume", str(path), "--steps", "420", "--observers", "stranger:Watch"]
    assert main(again) == 0
    assert mark.exists()


@pytest.mark.parametrize("folder", ["stranger:Watch", "runs/stranger:Watch", "stranger:Watch/Pendulum-v1/0"])
def test_the_name_of_a_folder_is_the_strangers_and_vouches_for_nothing(hostile, mark, tmp_path, monkeypatch, folder):
    path = hostile(observers=["stranger:Watch"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
    path.rename(tmp_path / folder)
    typed = folder.removeprefix("runs/")
    assert main(["train", "--resume", typed]) == 2
    assert main(["train", f"--resume={typed}"]) == 2
    assert main(["eval", typed, "--episodes", "1"]) == 2
    assert not mark.exists()
    assert main(["eval", typed, "--episodes", "1", "--trust"]) == 0


def test_an_account_is_not_typed_by_the_name_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "stranger").mkdir()
    monkeypatch.chdir(tmp_path)
    vouched.take(["train", "--resume", "stranger"])
    assert "stranger" not in vouched
    vouched.take(["train", "--resume", "stranger", "--wandb.entity", "stranger"])
    assert "stranger" in vouched


def test_the_command_that_began_a_run_goes_on_with_it_without_trust(tmp_path, mark, tiny_file):
    words = ["train", "--config", str(tiny_file), "--observers", "stranger:Watch", "--runs-dir", str(tmp_path / "r")]
    assert main(words) == 0
    assert main([*words, "--resume"]) == 0


@pytest.fixture
def tiny_file(tmp_path, tiny):
    from roboloop.core.config import to_dict

    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(to_dict(tiny(steps=120, warmup_steps=40))))
    return path


@pytest.mark.parametrize("name", ["os:abort", "cProfile:main", "subprocess:Popen"])
def test_nothing_is_called_to_find_out_whether_it_is_an_observer(hostile, capsys, name):
    path = hostile(observers=[name])
    assert main(["train", "--resume", str(path), "--trust"]) == 2
    assert "none of the methods" in capsys.readouterr().err


def test_an_address_that_a_run_names_is_not_called(hostile, capsys):
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.2)
    address = f"ray://127.0.0.1:{listening.getsockname()[1]}"
    path = hostile(sample__on="ray", sample__workers=1, sample__address=address)
    assert main(["train", "--resume", str(path)]) == 2
    assert "sample.address" in capsys.readouterr().err
    with pytest.raises(TimeoutError):
        listening.accept()
    listening.close()


@pytest.mark.parametrize(("then", "now"), [({}, {"g": 3.0}), ({"g": 3.0}, {}), ({"g": 3.0}, {"g": 4.0})])
def test_arguments_that_were_changed_after_a_checkpoint_make_it_another_experiment(hostile, capsys, then, now):
    path = hostile(trained={"env": {"kwargs": then}}, env__kwargs=now)
    assert main(["train", "--resume", str(path)]) == 2
    assert f"config.yaml says env.kwargs {now}" in capsys.readouterr().err


def test_a_fork_is_made_beside_its_run_whatever_folder_the_run_names(hostile, tmp_path):
    path = hostile(forged={"runs_dir": str(tmp_path / "victim")})
    assert main(["train", "--fork", str(path), "--at", "200", "--experiment", "fork", "--steps", "210"]) == 0
    assert not (tmp_path / "victim").exists()
    assert (path.parents[2] / "fork" / "Pendulum-v1" / "0" / "config.yaml").exists()
    copy = path.rename(tmp_path / "copy")
    assert main(["train", "--fork", str(copy), "--at", "200", "--experiment", "fork", "--steps", "210"]) == 0
    assert (tmp_path / "fork" / "Pendulum-v1" / "0" / "config.yaml").exists()


def test_an_arm_that_a_run_names_is_taken_only_by_who_types_its_address():
    rig = registry.config("panda/reach", panda={"driver": "process", "address": "127.0.0.1:7317"})
    with pytest.raises(DataError, match=r"env\.panda\.address '127\.0\.0\.1:7317'.*--trust"):
        trust.check_env(rig, "config.yaml")
    with vouched.during(["127.0.0.1:7317"]):
        trust.check_env(rig, "config.yaml")


def test_the_account_that_a_run_is_sent_to_is_one_that_was_typed(tiny):
    to_a_stranger = tiny(trackers=["wandb"], wandb={"entity": "stranger"})
    with pytest.raises(DataError, match=r"wandb\.entity 'stranger'.*--trust"):
        trust.check(to_a_stranger, "config.yaml")
    trust.check(tiny(wandb={"entity": "stranger"}), "config.yaml")


def test_a_file_that_the_arguments_of_an_environment_name_is_not_opened(hostile, tmp_path, capsys):
    os.mkfifo(tmp_path / "model.xml")
    path = hostile(env__id="gym/HalfCheetah-v5", env__kwargs={"xml_file": str(tmp_path / "model.xml")})
    assert main(["eval", str(path), "--episodes", "1"]) == 2
    assert "env.kwargs.xml_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("gym/stranger:Pendulum-v1", {}),
        ("gym/roboloop/tiny-point-v0", {"env_id": "gym/stranger:Pendulum-v1"}),
        ("gym/roboloop/tiny-point-v0", {"reward": "stranger:f"}),
    ],
)
def test_code_that_a_dataset_names_is_not_imported(tmp_path, mark, capsys, env_id, kwargs):
    data = tmp_path / "data"
    assert main(["record", "gym/Pendulum-v1", "--random", "--episodes", "1", "--out", str(data)]) == 0
    schema = json.loads((data / "schema.json").read_text())
    schema["env_id"], schema["source"]["env"]["kwargs"] = env_id, kwargs
    (data / "schema.json").write_text(json.dumps(schema))
    runs = str(tmp_path / "runs")
    assert main(["train", "--algo", "bc", "--dataset", str(data), "--runs-dir", runs, "--steps", "2"]) == 2
    assert "--trust" in capsys.readouterr().err
    for verb in ("info", "verify"):
        assert main(["dataset", verb, str(data)]) == 0
    assert not mark.exists()


def test_modules_in_the_working_directory_are_not_imported_by_what_we_start(tmp_path, tiny):
    """The launcher and the page start roboloop by these words."""
    from roboloop.launch.job import ROBOLOOP

    (tmp_path / "yaml.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(99)\n")
    path = train(tiny())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [*ROBOLOOP, "train", "--resume", str(path), "--steps", "405"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert not (tmp_path / "ran").exists(), done.stderr
    assert done.returncode == 0


def test_the_command_that_a_plan_tells_to_type_does_not_ask_for_trust(tmp_path):
    (tmp_path / SWEEP).mkdir()
    plan = {"runs": [], "command": ["sweep", "cartpole", "--trust", "--name", "a b"]}
    (tmp_path / SWEEP / "plan.json").write_text(json.dumps(plan))
    assert command_of(tmp_path) == "roboloop sweep cartpole --name 'a b'"
