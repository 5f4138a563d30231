import json
import os
import subprocess
import sys

import pytest
import yaml

from roboloop.algos.learner.replay_learner import ReplayLearner
from roboloop.core.errors import DataError, RunExists
from roboloop.core.sealed import seal_text
from roboloop.core.state import equal
from roboloop.run import checkpoint
from roboloop.run.rundir import RunDir, run_path
from tests.run.helpers import make_runner, remains, resume, train


def test_a_run_lives_under_experiment_task_and_seed(tiny):
    run = RunDir.create(tiny(seed=7), ["train"])
    assert run.path.parts[-3:] == ("tiny", "Pendulum-v1", "7")
    assert RunDir.open(run.path).config == run.config
    meta = json.loads((run.path / "meta.json").read_text())
    assert meta["versions"]["torch"]
    assert meta["command"] == ["roboloop", "train"]


def test_a_second_process_is_refused_and_the_first_goes_on(tiny):
    run = RunDir.create(tiny(), [])
    code = (
        "import sys; from pathlib import Path; from roboloop.run.rundir import RunDir\n"
        "from roboloop.core.errors import RunExists\n"
        f"try: RunDir.open(Path({str(run.path)!r}), write=True)\n"
        "except RunExists as e: print(e); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"is running in process {os.getpid()}" in done.stdout


def test_starting_a_finished_run_again_destroys_nothing(tiny):
    path = train(tiny())
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(RunExists, match="is finished"):
        RunDir.create(tiny(), [])
    assert {p: p.read_bytes() for p in path.rglob("*") if p.is_file()} == before


def test_an_interrupted_run_says_how_to_go_on(tiny):
    path = train(tiny(), crash_after=150)
    with pytest.raises(RunExists, match=f"--resume {path}"):
        RunDir.create(tiny(), [])


def test_a_run_whose_process_was_killed_while_it_was_created_can_be_created_again(tiny):
    config = tiny()
    run = RunDir.create(config, [])
    (run.path / "config.yaml").rename(run.path / ".config.yaml.tmp")
    run.close()
    RunDir.create(config, []).close()
    assert RunDir.open(run.path).config == config
    assert not (run.path / ".config.yaml.tmp").exists()


def test_a_foreign_directory_is_left_alone(tiny):
    config = tiny()
    run = RunDir.create(config, [])
    (run.path / "config.yaml").rename(run.path / "notes.yaml")
    run.close()
    with pytest.raises(DataError, match="is not a run directory"):
        RunDir.create(config, [])
    with pytest.raises(DataError, match="is not a run directory"):
        RunDir.open(run.path)


def test_a_damaged_config_is_one_line(tiny):
    run = RunDir.create(tiny(), [])
    (run.path / "config.yaml").write_text("sed: 3\n")
    with pytest.raises(DataError, match=r"cannot be read: unknown config key 'sed'; did you mean 'seed'\?"):
        RunDir.open(run.path)


OLD_KEYS = {"reward_version": "v2", "panda": {"hz": 5.0}, "soft": {"pool": 3}}
"""Of other suites: the environment section of every config had them up to format 2."""


def rewrite(path, made, **sections):
    """Write a run's config as another version would have; those up to format 2 said none."""
    data = yaml.safe_load((path / "config.yaml").read_text())
    for name, keys in sections.items():
        data[name] |= keys
    text = yaml.safe_dump(data, sort_keys=False)
    (path / "config.yaml").write_bytes(seal_text(text if made == 2 else f"# format {made}\n{text}"))


def test_a_run_of_a_later_format_is_refused_in_one_line_that_names_it(tiny):
    run = RunDir.create(tiny(), [])
    assert f"\n# format {checkpoint.FORMAT}\n" in (run.path / "config.yaml").read_text()
    rewrite(run.path, checkpoint.FORMAT + 1)
    with pytest.raises(DataError, match=r"config\.yaml has format 4, this version reads 2 to 3$"):
        RunDir.open(run.path)


def test_a_run_of_the_format_before_is_read(tiny):
    run = RunDir.create(tiny(), [])
    rewrite(run.path, 2, env=OLD_KEYS)
    assert RunDir.open(run.path).config == run.config


def test_keys_of_other_suites_are_refused_in_a_run_of_todays_format(tiny):
    run = RunDir.create(tiny(), [])
    rewrite(run.path, 3, env=OLD_KEYS)
    with pytest.raises(DataError, match=r"env\.reward_version"):
        RunDir.open(run.path)


def test_keys_that_an_older_version_left_out_or_named_otherwise_are_refused_in_one_line_that_names_the_format(tiny):
    run = RunDir.create(tiny(), [])
    rewrite(run.path, 2, algo={"forward_shared": True})
    older = r"\(written in format 2 by an older version, this one writes 3\)$"
    with pytest.raises(DataError, match=rf"unknown config key 'algo\.forward_shared'.*{older}"):
        RunDir.open(run.path)


def test_a_checkpoint_of_the_format_before_goes_on_or_is_refused_in_one_line_that_names_it(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        fits = train(tiny(), crash_after=250)
        patch.setattr(ReplayLearner, "state", lambda self: {"actor": {}, "num_updates": self.num_updates})
        other = train(tiny(experiment="other"), crash_after=250)
    assert remains(resume(fits))["state"]["clock"]["step"] == 400
    with pytest.raises(DataError, match=r"\(written in format 2 by an older version, this one writes 3\)$"):
        resume(other)


def test_what_a_run_was_made_with_is_what_its_suite_and_its_plug_ins_need(tiny):
    run = RunDir.create(tiny(env={"id": "planar/reach"}, algo={"name": "td3"}), [])
    versions = json.loads((run.path / "meta.json").read_text())["versions"]
    assert {"roboloop", "roboloop-outside", "torch", "safetensors"} <= set(versions)
    assert not {"metaworld", "dm_control", "mujoco"} & set(versions)
    run = RunDir.create(tiny(env={"id": "metaworld/reach-v3"}), [])
    assert {"metaworld", "mujoco"} <= set(json.loads((run.path / "meta.json").read_text())["versions"])


def test_a_fork_that_was_killed_is_no_run_and_the_same_command_makes_it(tiny, monkeypatch):
    old, config = train(tiny(checkpoint={"milestone_steps": 100})), tiny(experiment="fork")

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save_config", killed)  # after all copies
        with pytest.raises(KeyboardInterrupt):
            RunDir.open(old).fork(config, 200, [])
    half = run_path(config)
    assert (half / "journal").exists()
    with pytest.raises(DataError, match="is not a run directory"):
        RunDir.open(half)
    (half / "journal" / "seg-00009.rlj").write_bytes(b"of another try")
    run = RunDir.open(old).fork(config, 200, [])
    assert sorted(p.name for p in run.journal.iterdir()) == ["seg-00000.rlj"]
    assert not (half / "forking").exists()
    run.close()


def test_a_run_from_scratch_takes_nothing_over_from_a_fork_that_was_killed(tiny):
    config = tiny(experiment="fork")
    half = run_path(config)
    (half / "checkpoints" / "step-200").mkdir(parents=True)
    (half / "forking").touch()
    run = RunDir.create(config, [])
    assert not run.checkpoints.exists()
    assert not (half / "forking").exists()
    run.close()


def test_a_fork_begins_as_the_old_run_was_then(tiny):
    old = train(tiny(checkpoint={"milestone_steps": 100}))
    run = RunDir.open(old).fork(tiny(experiment="fork"), 200, [])
    runner = make_runner(run)
    assert runner.resume(print) == 200
    runner.train()
    runner.close()
    run.close()
    # nothing was changed in the fork's config, so it must become what the old run became
    a, b = remains(old), remains(run.path)
    assert a["metrics"] == b["metrics"]
    assert equal(a["rows"], b["rows"])
    assert equal(a["state"]["algo"], b["state"]["algo"])
    with pytest.raises(DataError, match="no checkpoint at step 130"):
        RunDir.open(old).fork(tiny(experiment="other"), 130, [])
