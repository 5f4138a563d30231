"""Broken environments are named in one line by ``envs check`` and by ``train``, before anything is on disk."""

import random
import re
import sys

import numpy as np
import pytest
import torch

from roboloop.cli import main
from roboloop.core.config import override
from roboloop.envs import EnvConfig, diagnose, patience
from roboloop.envs.diagnose import first_look
from roboloop.envs.findings import Findings
from roboloop.envs.gym import examine
from roboloop.run.config import Experiment
from roboloop.run.envs import check_before_training
from tests.envs import broken

SMALL = (
    "--steps 220 --warmup-steps 50 --log-every-steps 50 --replay.capacity 1000 --algo.hidden 8 8 --algo.batch-size 8"
    " --algo.processes 1 --eval.episodes 0 --checkpoint.every-steps 100 --trackers"
).split()
REFUSED = {
    "NotFinite": r"observation of step 1 is nan at index 1",
    "WrongShape": r"has shape \(3,\), observation_space has \(2,\)",
    "OldApi": r"reset\(\) takes no seed: that is the old Gym API",
    "OldReset": r"reset\(\) returned an array of shape \(2,\).*old Gym API",
    "OldStep": r"step\(\) returned 4 values.*old Gym API",
    "LyingActions": r"step 1 with action \[-1.0\] raised ValueError at tests/envs/broken.py:\d+: the motor takes half",
    "CrashInReset": r"reset\(seed=0\) raised OSError at tests/envs/broken.py:\d+: no scene file",
    "ExitsInReset": r"reset\(seed=0\) raised SystemExit at tests/envs/broken.py:\d+: 3",
    "NoInfo": r"the info of reset\(\) is a NoneType: return a dict",
    "LacksPart": r"the observation of reset\(\) has no 'force', observation_space has \['force', 'q'\]: return",
    "SuccessInWords": r"info\['success'\] of step 1 is 'yes': give a bool or a number",
    "SeesNothing": r"observations Box\(.*\(0,\).*\) hold nothing: give them at least one number",
    "Unbounded": r"action_space is unbounded at index 0: give finite bounds",
    "Inverted": r"action_space has low 2 and high 1 at index 0: low must be below high",
    "Sequences": r"observations Sequence\(.*\) have no fixed size",
}
WRONG = REFUSED | {
    "Unseeded": r"the same seed gave another first observation; draw all random numbers from self.np_random",
    "LyingSpaces": r"outside observation_space: [\d.e-]+ at index 1, bounds 0 to 0.01; widen the space or clip",
}
CRASH = r"RuntimeError at tests/envs/broken.py:\d+: the gripper fell off"
EXIT = r"SystemExit at tests/envs/broken.py:\d+: 3"
PICTURES = {
    "FloatPicture": r"no pictures, so that --video cannot be used: .* pictures of float64: return uint8, 0 to 255",
    "OneColour": r"the picture is of one colour, 99: --video may show nothing useful",
}
DOUBTFUL = {
    "NoRender": r"no pictures: add 'rgb_array'.*--video cannot be used",
    "HugeInfo": r"info has 1.2 MB per step, most of it in 'pictures'; copying it takes [\d.]+ ms",
    "Endless": r"has no max_episode_steps: episodes are cut at 1000 steps",
    "Float64": r"has dtype float64, observation_space has float32: it is converted",
}


def env_id(name):
    return f"gym/tests.envs.broken:{name}-v0"


def check(name, capsys, *flags):
    code = main(["envs", "check", env_id(name), *flags])
    said = capsys.readouterr()
    assert said.err == ""
    return code, said.out.splitlines()


def train(name, capsys, runs, *flags):
    code = main(["train", "--env", env_id(name), "--runs-dir", str(runs), *SMALL, *flags])
    return code, capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *WRONG.items(),
        ("CrashAtStep50", f"step 50 with .* raised {CRASH}"),
        ("ExitsAtStep50", f"step 50 with .* raised {EXIT}"),
    ],
)
def test_envs_check_names_an_error_in_one_line(name, words, capsys):
    code, lines = check(name, capsys)
    assert (code, len(lines)) == (2, 1)
    assert re.match(f"error: .*{words}", lines[0]), lines[0]


@pytest.mark.parametrize(("name", "words"), (DOUBTFUL | PICTURES).items())
def test_envs_check_warns_and_says_ok(name, words, capsys):
    code, (warning, ok) = check(name, capsys)
    assert code == 0
    assert re.match(f"warning: .*{words}", warning), warning
    assert ok.startswith(f"ok: {env_id(name)}: ")


@pytest.mark.parametrize("name", ["Whole", "Masked"])
def test_a_whole_environment_is_ok_with_speed_spaces_and_horizon(name, capsys):
    code, (ok,) = check(name, capsys, "--env.max-episode-steps", "77", "--steps", "100")
    assert code == 0
    assert re.search(r"[\d,]+ steps/s .*observations .*, actions .*, horizon 77$", ok), ok


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_train_refuses_in_one_line_and_leaves_nothing_on_disk(name, words, capsys, tmp_path):
    code, lines = train(name, capsys, tmp_path)
    assert (code, len(lines)) == (2, 1)
    assert re.match(f"roboloop: env '{env_id(name)}' is broken: .*{words}", lines[0]), lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Unseeded", "LyingSpaces", *DOUBTFUL])
def test_train_warns_in_one_line_of_what_it_can_bear(name, capsys, tmp_path):
    code, lines = train(name, capsys, tmp_path)
    assert (code, len(lines)) == (0, 1)
    assert re.match(f"roboloop: warning: env '{env_id(name)}': .*{(WRONG | DOUBTFUL)[name]}", lines[0]), lines[0]


@pytest.mark.parametrize(
    ("name", "said"), [("CrashAtStep50", r"the gripper fell off \(RuntimeError"), ("ExitsAtStep50", r"3 \(SystemExit")]
)
def test_an_environment_that_crashes_at_step_50_ends_training_in_one_line_with_the_code_of_broken_simulators(
    name, said, capsys, tmp_path
):
    code, lines = train(name, capsys, tmp_path)
    assert (code, len(lines)) == (7, 1)
    words = rf"env 0 broke: {said} at tests/envs/broken.py:\d+, .*sample.restarts allows$"
    assert re.match(f"roboloop: {words}", lines[0]), lines[0]


@pytest.mark.parametrize("background", [(), ("--eval.background",)])
def test_a_crash_in_an_evaluation_is_no_traceback(background, capsys, tmp_path):
    flags = ("--sample.restarts", "50", "--eval.episodes", "1", "--eval.every-steps", "100", *background)
    code, lines = train("CrashAtStep50", capsys, tmp_path, *flags)
    assert code == 7
    assert any(re.search(f"the environment broke in the evaluation, episode 0: {CRASH}", line) for line in lines), lines
    assert not any("Traceback" in line for line in lines)


def test_one_that_sleeps_is_named_while_it_does_and_given_up(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "NOTE_S", 0.2)
    monkeypatch.setattr(patience, "LIMIT_S", 0.5)
    assert main(["envs", "check", env_id("Sleeps")]) == 2
    said = capsys.readouterr()
    place = r"now at tests/envs/broken.py:\d+"
    assert re.match(rf"roboloop: checking {env_id('Sleeps')}: 0 s, {place}\n", said.err)
    assert re.match(rf"error: not done after \d s, {place}: reset\(\) and step\(\) take too long\n$", said.out)
    code, lines = train("Sleeps", capsys, tmp_path)
    assert code == 2
    assert re.match(f"roboloop: env '{env_id('Sleeps')}' is broken: not done after", lines[-1])


def test_a_slow_one_is_compared_over_fewer_steps(capsys, monkeypatch):
    for module in (diagnose, examine):
        monkeypatch.setattr(module, "BUDGET_S", 0.5)
    broken.Slow.num_steps[0] = 0
    code, (ok,) = check("Slow", capsys)
    assert code == 0
    assert "steps/s" in ok
    assert broken.Slow.num_steps[0] < 300  # about 900 where all of 60 steps are compared


def test_the_short_form_changes_no_random_stream():
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    found = Findings()
    first_look(EnvConfig(id=env_id("DrawsFromAll")), found)
    assert [finding.text[:13] for finding in found.all] == ["the same seed"]
    assert (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()) == before


def test_the_short_form_is_not_for_robots_nor_for_our_own_suites(monkeypatch):
    made = []
    monkeypatch.setattr("roboloop.envs.registry.make", lambda *args, **kwargs: made.append(args))
    panda = {"id": "panda/reach", "panda": {"driver": "process", "address": "127.0.0.1:9"}}
    for env in (panda, {"id": "tiny/point"}):
        check_before_training(override(Experiment(), {"env": env}))
    check_before_training(override(Experiment(), {"env": {"id": "Pendulum-v1"}, "sample": {"real_time": "inline"}}))
    assert not made


def test_envs_check_does_not_move_a_robot(capsys):
    address = ("--env.panda.driver", "process", "--env.panda.address", "127.0.0.1:9")
    assert main(["envs", "check", "panda/reach", *address]) == 2
    assert "acts at random" in capsys.readouterr().err


def test_a_resumed_run_is_not_checked_again(capsys, tmp_path):
    assert train("NoRender", capsys, tmp_path)[0] == 0
    (run,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    main(["train", "--resume", str(run), "--steps", "250", "--trust"])
    assert capsys.readouterr().err == ""


def test_a_module_that_cannot_be_imported_is_one_line(capsys, tmp_path, monkeypatch):
    (tmp_path / "half_written.py").write_text("import gymnasium\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["envs", "check", "gym/half_written:Some-v0"]) == 2
    words = "error: making the environment raised ZeroDivisionError at half_written.py:2: division by zero\n"
    assert capsys.readouterr().out == words
    assert "half_written" not in sys.modules
