"""Frozen policies act as PPO's do, without torch; what is no such file is one line."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from roboloop.algos.frozen import freeze
from roboloop.algos.learner.policy import LearnerPolicy
from roboloop.algos.policy import UniformPolicy, in_bounds
from roboloop.algos.ppo.config import PPOConfig
from roboloop.algos.ppo.ppo import make_ppo
from roboloop.core.errors import ConfigError, DataError
from roboloop.core.types import EnvSpec
from roboloop.envs.frozen import FrozenPolicy, load_all

SPEC = EnvSpec((5,), np.dtype(np.float32), (-2.0, 0.0), (2.0, 10.0), 100)
NETS = {
    "fixed": {},
    "state-dependent": {"state_dependent_std": True, "initial_std": 0.4},
    "scaled": {"normalize_obs": True, "activation": "elu"},
    "shared": {"shared_trunk": True, "state_dependent_std": True, "activation": "relu", "normalize_obs": True},
}


def policy(spec: EnvSpec = SPEC, **options) -> LearnerPolicy:
    """Return a policy in which no number is what it was at the start."""
    algo = make_ppo(PPOConfig(**{"hidden": (16, 8), "processes": 1, **options}), spec, 1, 8, seed=0)
    weights = np.zeros(algo.policy.num_weights, np.float32)
    algo.policy.write_weights(weights)
    weights += np.random.default_rng(1).normal(0, 0.2, weights.shape).astype(np.float32)
    made = algo.policy.snapshot()
    made.read_weights(weights, 7)
    algo.close()
    return made


def written(tmp_path: Path, frozen: FrozenPolicy) -> Path:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(frozen.to_bytes())
    return path


@pytest.mark.parametrize("options", NETS.values(), ids=NETS)
def test_a_file_acts_as_the_policy_that_it_was_made_of(tmp_path, options) -> None:
    ours = policy(**options)
    frozen = FrozenPolicy.load(written(tmp_path, freeze(ours, about={"algo": "ppo"})))
    assert frozen.about == {"algo": "ppo"}
    obs, none = np.random.default_rng(0).normal(0, 3, (64, 5)).astype(np.float32), np.zeros((64, 0), np.float32)
    rng = np.random.default_rng
    for explore in (False, True):
        wanted = in_bounds(ours.act(obs, none, explore, rng(3)).action, SPEC)
        np.testing.assert_allclose(frozen.act_many(obs, rng(3), explore), wanted, atol=1e-5)
        one, mine = rng(3), rng(3)
        each = np.stack([frozen.act(row, one, explore) for row in obs])
        wanted = np.concatenate([ours.act(row[None], none[:1], explore, mine).action for row in obs])
        np.testing.assert_allclose(each, in_bounds(wanted, SPEC), atol=1e-5)
    # deviations by the density: at its mean it is 1 / (std sqrt(2 pi)) for each action
    mean, std = frozen.mean_and_std(obs)
    peak = ours.act(obs, none, False, rng(0)).log_prob
    np.testing.assert_allclose(-np.log(std).sum(1) - np.log(2 * np.pi), peak, atol=1e-4)
    np.testing.assert_allclose(frozen.to_unit(mean * frozen._half + frozen._center), mean, atol=1e-5)


@pytest.mark.parametrize("options", [NETS["fixed"], NETS["state-dependent"]], ids=["fixed", "state-dependent"])
def test_deviations_are_cut_where_ppo_cuts_them(options) -> None:
    ours = policy(**options | {"initial_std": 1e-4})
    frozen = freeze(ours)
    obs, none = np.random.default_rng(0).normal(0, 1, (16, 5)).astype(np.float32), np.zeros((16, 0), np.float32)
    found = [frozen.act_many(obs, np.random.default_rng(3), explore) for explore in (False, True)]
    wanted = [
        in_bounds(ours.act(obs, none, explore, np.random.default_rng(3)).action, SPEC) for explore in (False, True)
    ]
    assert np.abs(wanted[1] - wanted[0]).max() > 0.005  # exp(-5) in units of the bounds, not 1e-4
    np.testing.assert_allclose(found[1] - found[0], wanted[1] - wanted[0], atol=1e-5)


@pytest.mark.parametrize("options", NETS.values(), ids=NETS)
def test_a_deviation_can_be_given(options) -> None:
    ours = policy(**options)
    frozen, given = freeze(ours), freeze(ours, std=0.27)
    obs = np.random.default_rng(0).normal(0, 1, (16, 5)).astype(np.float32)
    np.testing.assert_array_equal(given.mean_and_std(obs)[0], frozen.mean_and_std(obs)[0])
    np.testing.assert_allclose(given.mean_and_std(obs)[1], np.full((16, 2), 0.27), rtol=1e-6)
    with pytest.raises(ConfigError, match="must be above 0, not 0"):
        freeze(ours, std=0.0)


def test_actions_stay_within_bounds_and_draws_are_those_of_the_generator() -> None:
    frozen = freeze(policy(), std=5.0)
    obs = np.zeros(5, np.float32)
    rng = np.random.default_rng(0)
    actions = np.stack([frozen.act(obs, rng) for _ in range(200)])
    assert (actions.min(0) == [-2, 0]).all()
    assert (actions.max(0) == [2, 10]).all()
    again = np.random.default_rng(0)
    np.testing.assert_array_equal(actions, np.stack([frozen.act(obs, again) for _ in range(200)]))
    np.testing.assert_array_equal(frozen.act(obs, rng, explore=False), frozen.act(obs, rng, explore=False))


def test_what_cannot_be_frozen_is_named() -> None:
    with pytest.raises(ConfigError, match="UniformPolicy cannot be frozen"):
        freeze(UniformPolicy(SPEC))
    choices = dataclasses.replace(SPEC, action_low=(0.0,), action_high=(3.0,), action_choices=(4,))
    for spec, options in ((choices, {}), (SPEC, {"core": "gru", "core_size": 8})):
        with pytest.raises(ConfigError, match="plain observations, continuous actions and no memory"):
            freeze(policy(spec, **options))


def changed(path: Path, **tensors) -> bytes:
    """Return the file with other tensors and the right checksum of them."""
    from roboloop.envs.frozen import _checksum

    data = path.read_bytes()
    header = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["roboloop"])
    parts = {name: value for name, value in {**load(data), **tensors}.items() if value is not None}
    return save(parts, {"roboloop": json.dumps({**header, "crc32": _checksum(parts)})})


def test_a_file_that_is_torn_wrong_or_of_another_kind_is_one_line(tmp_path) -> None:
    good = written(tmp_path, freeze(policy()))
    data, bad = good.read_bytes(), tmp_path / "bad.safetensors"
    flipped = bytearray(data)
    flipped[-3] ^= 1
    weight = np.zeros((5, 17), np.float32)
    for content, said in (
        (data[:-40], "is damaged or no frozen policy"),
        (data[:5], "is damaged or no frozen policy"),
        (b"", "is damaged or no frozen policy"),
        (bytes(flipped), "do not match their checksum"),
        (save({"x": weight}), "is no frozen policy"),
        (save({"x": weight}, {"roboloop": '{"kind": "roboloop-frozen-policy", "format": 9}'}), "of format 9"),
        (save({"x": weight}, {"roboloop": '{"kind": "roboloop-frozen-policy", "format": 1}'}), "is missing or wrong"),
        (changed(good, **{"linear0.weight": weight}), r"layer 0 has shape \(5, 17\), not \(5, 16\)"),
        (changed(good, **{"linear2.bias": None}), "its layers are not whole"),
        (changed(good, log_std=np.zeros(0, np.float32)), "its last layer has 2 outputs for 2 actions"),
        (changed(good, log_std=np.zeros(3, np.float32)), "deviations or its scale"),
        (changed(good, log_std=None), "'log_std' is missing or wrong"),
    ):
        bad.write_bytes(content)
        with pytest.raises(DataError, match=said) as caught:
            FrozenPolicy.load(bad)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="is no file: roboloop export RUN --frozen"):
        FrozenPolicy.load(tmp_path / "nothing")


def test_an_ensemble_is_of_one_shape(tmp_path) -> None:
    one = written(tmp_path, freeze(policy()))
    other = tmp_path / "other.safetensors"
    other.write_bytes(freeze(policy(dataclasses.replace(SPEC, obs_shape=(4,)))).to_bytes())
    assert len(load_all([str(one), str(one)])) == 2
    with pytest.raises(DataError, match="does not see and do what"):
        load_all([str(one), str(other)])


def test_acting_needs_no_torch(tmp_path) -> None:
    path = written(tmp_path, freeze(policy()))
    code = (
        "import sys, numpy as np; from roboloop.envs.frozen import FrozenPolicy\n"
        f"FrozenPolicy.load({str(path)!r}).act(np.zeros(5), np.random.default_rng(0)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
