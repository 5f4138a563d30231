"""Constant parameters by CMA-ES, and how true simulators are: both verbs, from what was recorded."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from roboloop.cli import main
from roboloop.core.errors import DataError
from roboloop.core.rng import stream
from roboloop.data.dataset import Dataset
from roboloop.data.experts import split
from roboloop.envs import EnvConfig, make
from roboloop.envs.frozen import FrozenPolicy
from roboloop.envs.legged.config import HybridConfig
from roboloop.envs.legged.hopper import HopperTask
from roboloop.envs.legged.suite import HybridEnvConfig
from roboloop.run.sysid import Generation, constant, huber_loss, search

QUIET = "--env.legged.obs-noise 0 --env.legged.action-noise 0".split()
WEAK = "--env.legged.torque-scale 1 1 0.5".split()
MOTORS = slice(4, 7)


@pytest.fixture(scope="module")
def weak(tmp_path_factory):
    """Twelve episodes of random actions of a hopper whose foot has half its torque, without noise."""
    out = tmp_path_factory.mktemp("weak") / "data"
    assert main(["record", "hopper/bullet", "--random", "--episodes", "12", "--out", str(out), *QUIET, *WEAK]) == 0
    return out


def sysid_words(data, out, *more):
    words = "sysid", "hopper/bullet", "--data", data, "--out", out, "--transitions", 25, *more
    return [str(word) for word in words]


def run_sysid(data, out, *more):
    return main(sysid_words(data, out, *more))


def bowl(t):
    """Return a loss whose least is not at 0."""
    return float(((t - np.array([0.5, -0.3, 0.0])) ** 2).sum())


def test_a_search_finds_the_least_of_a_bowl_within_bounds():
    past: list[Generation] = []
    found = search(bowl, 3, 0, 40, past)
    np.testing.assert_allclose(found.t, [0.5, -0.3, 0.0], atol=0.02)
    assert np.abs([t for generation in past for t in generation.tried]).max() <= 1
    at_the_edge = search(lambda t: float(((t - 3) ** 2).sum()), 3, 0, 40, [])
    np.testing.assert_allclose(at_the_edge.t, 1.0, atol=0.01)


def test_equal_seeds_search_alike_whatever_else_draws_and_others_do_not():
    runs = []
    for seed, noise in ((7, 1), (7, 2), (8, 1)):
        np.random.seed(noise)  # what the library would draw from if it were left to itself
        past: list[Generation] = []
        runs.append((past, search(bowl, 3, seed, 5, past)))
    (one, found_one), (two, found_two), (other, _) = runs
    assert one == two
    np.testing.assert_array_equal(found_one.t, found_two.t)
    assert one != other


def test_a_search_leaves_the_global_generator_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    search(bowl, 3, 0, 3, [])
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_search_that_was_stopped_ends_with_the_same_bits_and_asks_nothing_twice(stop_after):
    asked = []

    def loss(t):
        asked.append(t)
        return bowl(t)

    whole: list[Generation] = []
    found = search(loss, 3, 0, 8, whole)
    num_asked = len(asked)
    past: list[Generation] = []
    assert search(loss, 3, 0, 8, past, lambda: len(past) < stop_after) is None
    past = [Generation(**g) for g in json.loads(json.dumps([g._asdict() for g in past]))]
    assert len(past) == stop_after
    again = search(loss, 3, 0, 8, past)
    assert past == whole
    np.testing.assert_array_equal(again.t, found.t)
    assert again.loss == found.loss
    assert len(asked) == 2 * num_asked


def test_a_past_that_this_search_did_not_have_is_refused():
    past: list[Generation] = []
    search(bowl, 3, 0, 2, past)
    with pytest.raises(DataError, match="was another one"):
        search(bowl, 3, 1, 4, past)


def test_the_loss_is_square_for_small_errors_and_bounded_for_a_simulator_that_blew_up():
    class Moment:
        after = np.zeros(2)

    assert huber_loss(np.array([[0.2, 0.0]]), [Moment], np.array([0.4, 1.0])) == pytest.approx(0.25 / 4)
    assert huber_loss(np.array([[3.0, 0.0]]), [Moment], np.ones(2)) == pytest.approx(2.5 / 2)
    assert np.isfinite(huber_loss(np.array([[np.nan, np.inf]]), [Moment], np.ones(2)))


def test_a_constant_policy_always_says_the_same(tmp_path):
    t = np.array([0.3, -1.0, 0.0])
    policy = constant(t, 5, {"from": "here"})
    (tmp_path / "t.safetensors").write_bytes(policy.to_bytes())
    again, rng = FrozenPolicy.load(tmp_path / "t.safetensors"), np.random.default_rng(0)
    for obs in rng.normal(size=(3, 5)).astype(np.float32):
        np.testing.assert_array_equal(again.act(obs, rng), t.astype(np.float32))
    assert again.about == {"from": "here"}


def test_the_foot_that_has_half_its_torque_is_found_out_and_the_result_predicts_better(weak, tmp_path, capsys):
    out = tmp_path / "found.safetensors"
    assert run_sysid(weak, out, "--generations", 20) == 0
    said = capsys.readouterr().out
    assert "foot.motor" in said
    t = FrozenPolicy.load(out).act(np.zeros(14, np.float32), np.random.default_rng(0))
    motors = HopperTask.parameters.motor ** t[MOTORS]
    np.testing.assert_allclose(motors, [1.0, 1.0, 0.5], atol=0.08)
    report = tmp_path / "errors.json"
    args = ["predict", "hopper/bullet", "--data", str(weak), "--generators", str(out), "--steps", "1", "5"]
    assert main([*args, "--out", str(report)]) == 0
    said = capsys.readouterr().out
    assert "nothing moves" in said
    simulators = json.loads(report.read_text())["simulators"]
    still, plain, tuned = (one["errors"] for one in simulators)
    for k in (0, 1):
        assert tuned[k]["normalised"] < 0.7 * plain[k]["normalised"]
        assert plain[k]["normalised"] < still[k]["normalised"]
    assert [e["steps"] for e in tuned] == [1, 5]
    assert len(tuned[0]["rmse"]) == 11
    foot, spread = simulators[2]["parameters"]["foot.motor"]
    assert (foot, spread) == pytest.approx((motors[2], 0.0), abs=1e-6)
    assert "parameters of hopper/bullet with" in said


def test_a_killed_search_goes_on_and_writes_the_same_file(weak, tmp_path, capsys):
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    assert run_sysid(weak, whole, "--generations", 6) == 0
    words = [sys.executable, "-m", "roboloop.cli", *sysid_words(weak, cut, "--generations", 6)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as search_process:
        for line in search_process.stdout:
            if line.startswith("generation 1 of 6"):
                search_process.kill()
    assert search_process.returncode == -signal.SIGKILL
    assert not cut.exists()
    assert run_sysid(weak, cut, "--generations", 6) == 0
    assert "goes on after generation" in capsys.readouterr().out
    assert cut.read_bytes() == whole.read_bytes()


def test_another_search_under_the_same_name_is_refused(weak, tmp_path, capsys):
    out = tmp_path / "found.safetensors"
    assert run_sysid(weak, out, "--generations", 1) == 0
    assert run_sysid(weak, out, "--generations", 1) == 2
    assert "exists: nothing was changed" in capsys.readouterr().err
    out.unlink()
    assert run_sysid(weak, out, "--generations", 1, "--seed", 1) == 2
    assert "is a search with another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["tiny/point"], "is no robot in an engine"),
        (["hopper/bulet"], "did you mean 'bullet'?"),
        (["hopper/bullet", "--steps", "0"], "--steps must be at least 1"),
        (["hopper/bullet", "--held-out", "1"], "a share below 1"),
        (["hopper/bullet", "--step", "3"], "did you mean"),
        (["hopper/bullet", "--generators", "nothing.safetensors"], "is no file"),
    ],
)
def test_bad_input_is_one_line(weak, args, said, capsys):
    assert main(["predict", *args, "--data", str(weak)]) == 2
    assert said in capsys.readouterr().err


def test_data_of_another_robot_are_refused(tmp_path, capsys):
    assert main(["record", "tiny/point", "--random", "--episodes", "1", "--out", str(tmp_path / "point")]) == 0
    assert main(["predict", "hopper/bullet", "--data", str(tmp_path / "point")]) == 2
    assert "another robot" in capsys.readouterr().err


def test_a_generator_of_another_robot_is_refused(weak, tmp_path, capsys):
    path = tmp_path / "other.safetensors"
    path.write_bytes(constant(np.zeros(7), 5, {}).to_bytes())
    assert main(["predict", "hopper/bullet", "--data", str(weak), "--generators", str(path)]) == 2
    assert "a generator of hopper/bullet sees 14 and says 7" in capsys.readouterr().err


def test_predictions_hold_out_the_episodes_that_a_run_of_the_same_seed_holds_out(weak, tmp_path):
    data = Dataset.open(weak)
    taught, held_out = split(data, np.arange(len(data)), 0.25, 5)
    assert sorted([*taught, *held_out]) == list(range(12))
    assert len(held_out) == 3
    order = stream(5, "expert-held-out", 0).permutation(12)
    np.testing.assert_array_equal(held_out, np.sort(order[:3]))
    report = tmp_path / "errors.json"
    args = ["predict", "hopper/bullet", "--data", str(weak), "--held-out", "0.25", "--seed", "5", "--steps", "1"]
    assert main([*args, "--out", str(report)]) == 0
    assert json.loads(report.read_text())["episodes"] == held_out.tolist()


def test_what_is_found_stands_where_a_generator_can(tmp_path):
    half = np.zeros(7)
    half[6] = np.log(0.5) / np.log(HopperTask.parameters.motor)
    path = tmp_path / "half.safetensors"
    path.write_bytes(constant(half, 14, {}).to_bytes())
    tuned = make(HybridEnvConfig(id="tuned/hopper-bullet", hybrid=HybridConfig(generators=(str(path),))))
    weak = make(EnvConfig(id="hopper/bullet-power"))
    np.testing.assert_array_equal(tuned.reset(5), weak.reset(5))
    for action in np.random.default_rng(0).uniform(-0.3, 0.3, (8, 3)).astype(np.float32):
        np.testing.assert_allclose(tuned.step(action)[0], weak.step(action)[0], atol=1e-4)
    tuned.close()
    weak.close()
