"""An exported policy acts as ours does, whatever it is made of; where it does not, nothing is written."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from outside.td3 import TD3, TD3Config  # noqa: E402

from roboloop import cli  # noqa: E402
from roboloop.algos import graph  # noqa: E402
from roboloop.algos.learner.replay_learner import ReplayLearner  # noqa: E402
from roboloop.algos.mtsac.mtsac import make_mtsac  # noqa: E402
from roboloop.algos.policy import UniformPolicy, in_bounds  # noqa: E402
from roboloop.algos.ppo.config import PPOConfig  # noqa: E402
from roboloop.algos.ppo.ppo import make_ppo  # noqa: E402
from roboloop.algos.sac.config import SACConfig  # noqa: E402
from roboloop.algos.sac.setup import make_sac  # noqa: E402
from roboloop.core.errors import ConfigError  # noqa: E402
from roboloop.core.types import Array, EnvSpec, PortablePolicy, RewardAware  # noqa: E402
from roboloop.run.export import PARITY_LIMIT, OnnxPolicy  # noqa: E402
from roboloop.run.rundir import RunDir  # noqa: E402
from tests.algos import test_intention_policy as intention_policy  # noqa: E402
from tests.algos import test_multitask_sac as multitask_sac  # noqa: E402
from tests.algos import test_pick as pick  # noqa: E402
from tests.algos import test_pixel_sac as pixel_sac  # noqa: E402
from tests.algos.test_bc_heads import AUXILIARY, SET  # noqa: E402
from tests.algos.test_bc_heads import make as make_heads  # noqa: E402
from tests.algos.test_imitation import SMALL_BC, SMALL_DT, batches, make, random_obs  # noqa: E402
from tests.algos.test_policy import SMALL  # noqa: E402
from tests.algos.test_sac import SPEC  # noqa: E402
from tests.algos.test_sac import batches as transitions  # noqa: E402
from tests.algos.toys import Aim, Anything, Look, Match, Recall  # noqa: E402
from tests.run.helpers import train  # noqa: E402

DOUBLES = EnvSpec((2, 3), np.dtype(np.float64), (-2.0, 0.0), (1.0, 50.0), 9)
UNITS = EnvSpec((5,), np.dtype(np.float32), (-1.0,) * 3, (1.0,) * 3, 9)
PICTURE = EnvSpec((1, 17, 19), np.dtype(np.uint8), (0.0, -1.0), (3.0, 1.0), 9, action_choices=(4, 0))


def shaken(policy: PortablePolicy) -> PortablePolicy:
    """Return the policy with larger weights: what was just initialised hardly depends on the observation."""
    rng, flat = np.random.default_rng(0), np.zeros(policy.num_weights, np.float32)
    policy.write_weights(flat)
    noise = 0.3 * rng.standard_normal(len(flat), dtype=np.float32)
    policy.read_weights(np.where(flat, flat * (1 + noise) + 0.1 * noise, flat).astype(np.float32), policy.version)
    return policy


def varied_obs(spec: EnvSpec, lead: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return observations with large numbers, pictures of any brightness, and some choices impossible."""
    obs = random_obs(spec, lead, rng)
    names = spec.obs_dtype.names or ()
    if "vector" in names:
        obs["vector"] *= 10
    if "image" in names:
        obs["image"] //= rng.integers(1, 50, (*lead, 1, 1, 1), dtype=np.uint8)
    if "action_mask" in names:
        obs["action_mask"] = rng.random(obs["action_mask"].shape) < 0.5
        obs["action_mask"][..., [0, 5]] = 1
    return obs


def assert_exported_acts_alike(policy: PortablePolicy, spec: EnvSpec, frames: int = 1, steps: int = 6) -> None:
    """Compare ours and the exported one over some steps, alone and side by side, each with its own memory."""
    model = graph.onnx_model(policy)
    onnx.checker.check_model(onnx.load_model_from_string(model), full_check=True)
    exported, rng = OnnxPolicy(model), np.random.default_rng(1)
    assert exported.memory_size == policy.memory_size
    seen = set()
    for rows in (1, 5):
        ours = theirs = np.zeros((rows, policy.memory_size), np.float32)
        for _ in range(steps):
            obs = varied_obs(spec, (rows, *([frames] if frames > 1 else [])), rng)
            a, b = policy.act(obs, ours, False, rng), exported.act(obs, theirs, False, rng)
            ours, theirs = a.memory, b.memory
            if isinstance(policy, RewardAware):
                reward = rng.normal(size=rows).astype(np.float32)
                ours, theirs = policy.observe_reward(ours, reward), exported.observe_reward(theirs, reward)
            assert b.action.dtype == np.float32
            np.testing.assert_allclose(b.action, in_bounds(a.action, spec), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
            seen |= {row.tobytes() for row in b.action}
    assert len(seen) > 1, "always the same action proves nothing"


@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_sac(normalize_obs, layer_norm):
    cfg = SACConfig(hidden=(16, 12), batch_size=16, processes=1, normalize_obs=normalize_obs, layer_norm=layer_norm)
    sac, source = make_sac(cfg, SPEC, 1, seed=0), transitions(16)
    for _ in range(3):
        sac.update(next(source))
    assert_exported_acts_alike(sac.policy, SPEC)


@pytest.mark.parametrize(("spec", "frames"), [(DOUBLES, 1), (DOUBLES, 3), (UNITS, 2)])
def test_sac_of_other_types_shapes_stacks_and_bounds(spec, frames):
    sac = make_sac(SACConfig(hidden=(16,), batch_size=16, processes=1), spec, frames, seed=0)
    assert_exported_acts_alike(shaken(sac.policy), spec, frames)


@pytest.mark.parametrize(("spec", "frames"), [(pixel_sac.PLAIN, 1), (pixel_sac.PLAIN, 3), (pixel_sac.RECORD, 2)])
def test_sac_that_sees(spec, frames):
    sac = make_sac(dataclasses.replace(pixel_sac.SMALL, normalize_obs=True), spec, frames, seed=0)
    for batch in itertools.islice(pixel_sac.batches(spec, frames=frames), 3):
        sac.update(batch)
    assert_exported_acts_alike(shaken(sac.policy), spec, frames)


@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("spec", [Match.spec, Aim.spec, DOUBLES], ids=["choice", "continuous", "float64"])
def test_ppo_over_vectors(spec, shared_trunk):
    cfg = PPOConfig(**SMALL, shared_trunk=shared_trunk, normalize_obs=True, state_dependent_std=shared_trunk)
    assert_exported_acts_alike(shaken(make_ppo(cfg, spec, 1, 4, seed=0).policy), spec)


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
@pytest.mark.parametrize("frames", [1, 2])
def test_ppo_over_pictures_vectors_and_masks_with_memory(core, frames):
    cfg = PPOConfig(**SMALL, core=core, normalize_obs=True)
    assert_exported_acts_alike(shaken(make_ppo(cfg, Anything.spec, frames, 4, seed=0).policy), Anything.spec, frames)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_ppo_that_remembers_vectors(core):
    assert_exported_acts_alike(
        shaken(make_ppo(PPOConfig(**SMALL, core=core), Recall.spec, 1, 4, 0).policy), Recall.spec
    )


@pytest.mark.parametrize(("kernels", "strides"), [((4, 3), (2, 1)), ((5, 2), (2, 1)), ((8, 2), (4, 1))])
def test_pictures_that_do_not_fall_into_whole_blocks(kernels, strides):
    convs = {"conv_channels": (4, 3), "conv_kernels": kernels, "conv_strides": strides}
    cfg = PPOConfig(**{**SMALL, **convs})
    assert_exported_acts_alike(shaken(make_ppo(cfg, PICTURE, 1, 4, seed=0).policy), PICTURE)


@pytest.mark.parametrize("spec", [SPEC, Anything.spec, Look.spec], ids=["vector", "anything", "look"])
def test_behaviour_cloning(spec):
    learner, source = make(SMALL_BC, spec), batches(spec)
    for _ in range(3):
        learner.update(next(source))
    assert_exported_acts_alike(shaken(learner.policy), spec)


@pytest.mark.parametrize("spec", [AUXILIARY, SET], ids=["auxiliary", "set"])
def test_behaviour_cloning_with_a_head_for_each_task(spec):
    assert_exported_acts_alike(shaken(make_heads(spec).policy), spec)


@pytest.mark.parametrize(("spec", "heads"), [(SPEC, 2), (Anything.spec, 1)], ids=["vector", "anything"])
def test_a_decision_transformer_with_its_cache(spec, heads):
    """For longer than its context of 5 steps: then the oldest are overwritten."""
    policy = make(dataclasses.replace(SMALL_DT, heads=heads), spec).policy
    assert_exported_acts_alike(shaken(policy), spec, steps=14)


@pytest.mark.parametrize("net", multitask_sac.NETS)
def test_networks_for_several_tasks_act_by_the_task_that_an_observation_ends_with(net):
    cfg = dataclasses.replace(multitask_sac.NETS[net], normalize_obs=True)
    sac, source = make_mtsac(cfg, multitask_sac.SPEC, 1, seed=0), multitask_sac.batches()
    for _ in range(3):
        sac.update(next(source))
    policy, rng = shaken(sac.policy), np.random.default_rng(1)
    exported, obs = OnnxPolicy(graph.onnx_model(policy)), next(source).obs[rng.permutation(24)]
    for rows in (obs, obs[:1]):
        ours, theirs = (
            p.act(rows, np.zeros((len(rows), 0), np.float32), False, rng).action for p in (policy, exported)
        )
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    assert len(np.unique(ours)) > 1


@pytest.mark.parametrize("task", ["", "reach"])
def test_one_of_several_intentions(task):
    policy = intention_policy.policy_of(intention_policy.LISTED)
    one = policy.for_task(task)
    assert one.task == ("place", "reach", "grasp").index(task or "place")
    assert_exported_acts_alike(one, intention_policy.SPEC)


@pytest.mark.parametrize("kind", [kind for kind in pick.KINDS if kind != "uniform"])
def test_picks(kind):
    which, spec = pick.KINDS[kind]
    algo, source = pick.make_pick(dataclasses.replace(pick.SMALL, pick=which), spec, seed=0), pick.batches(spec=spec)
    algo.update(next(source))
    policy, rng = shaken(algo.policy), np.random.default_rng(0)
    exported, memory = OnnxPolicy(graph.onnx_model(policy)), np.zeros((9, 0), np.float32)
    obs = pick.seen(9, spec=spec)
    for rows in (9, 1):
        ours, theirs = (p.act(obs[:rows], memory[:rows], False, rng).action for p in (policy, exported))
        np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_exported_is_named():
    with pytest.raises(ConfigError, match="UniformPolicy"):
        graph.onnx_model(UniformPolicy(SPEC))
    uniform = pick.make_pick(dataclasses.replace(pick.SMALL, pick="uniform"), pick.SPEC, seed=0)
    with pytest.raises(ConfigError, match="draws its picks cannot be exported"):
        graph.onnx_model(uniform.policy)


@pytest.fixture
def run(tiny):
    return train(tiny(steps=120, env={"frame_stack": 2}, eval={"every_steps": 0}))


def export(run, out, *more) -> int:
    return cli.main(["export", str(run), "--onnx", str(out), *map(str, more)])


def test_the_contract_says_all_that_acting_needs(run, tmp_path, capsys):
    out = tmp_path / "deep" / "policy.onnx"
    assert export(run, out, "--checkpoint", "last") == 0
    said = capsys.readouterr().out
    assert "parity" in said
    contract = json.loads((tmp_path / "deep" / "policy.json").read_text())
    assert contract["file"] == {"name": "policy.onnx", "sha256": hashlib.sha256(out.read_bytes()).hexdigest()}
    obs = {"name": "obs", "shape": ["batch", 2, 3], "dtype": "float32"}
    assert contract["observation"] == {"frame_stack": 2, "fields": [obs]}
    assert contract["action"]["columns"] == [{"low": -2.0, "high": 2.0}]
    assert contract["memory"] is None
    assert contract["policy"]["checkpoint_step"] == 120
    assert contract["policy"]["version"] == 60
    assert contract["env"]["config"]["id"] == "gym/Pendulum-v1"
    assert contract["parity"]["max_difference"] <= PARITY_LIMIT
    assert contract["versions"]["onnx"] == onnx.__version__
    assert sorted(p.name for p in out.parent.iterdir()) == ["policy.json", "policy.onnx"]


def test_memory_is_carried_through_the_parity_check(tiny, tmp_path):
    algo = {"name": "ppo", "core": "gru", "core_size": 8, "hidden": [8], "rollout_steps": 16, "minibatches": 1}
    run = train(tiny(steps=64, env={"id": "tiny/recall", "num_envs": 4}, algo=algo, eval={"every_steps": 0}))
    assert export(run, tmp_path / "p.onnx", "--checkpoint", 64) == 0
    contract = json.loads((tmp_path / "p.json").read_text())
    assert contract["memory"] == {"size": 8, "input": "memory", "output": "memory_after"}
    assert contract["action"]["columns"] == [{"choices": 4}]


def test_a_policy_that_acts_otherwise_is_not_written(run, tmp_path, capsys, monkeypatch):
    other = make_sac(SACConfig(hidden=(8,), processes=1), dataclasses.replace(UNITS, obs_shape=(3,), action_low=(-2.0,),
                action_high=(2.0,)), 2, seed=5)  # fmt: skip
    model = graph.onnx_model(shaken(other.policy))
    monkeypatch.setattr(graph, "onnx_model", lambda policy: model)
    assert export(run, tmp_path / "out" / "p.onnx") == 9
    assert "differs from ours" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("taken", ["p.onnx", "p.json"])
def test_a_file_that_exists_is_left_alone(run, tmp_path, capsys, taken):
    (tmp_path / taken).write_text("mine")
    assert export(run, tmp_path / "p.onnx") == 2
    assert "exists: nothing was changed" in capsys.readouterr().err
    assert (tmp_path / taken).read_text() == "mine"
    assert len(list(tmp_path.glob("*p.*"))) == 1


def test_bad_input_is_one_line(run, tiny, tmp_path, capsys):
    fresh = RunDir.create(tiny(seed=7), [])
    for path, out, more, said in (
        (fresh.path, "p.onnx", [], "has no checkpoint"),
        (run, "p.onnx", ["--checkpoint", 77], "no checkpoint at step 77"),
        (run, "p.onnx", ["--checkpoint", "newest"], "'best', 'last' or a step"),
        (run, "p.pt", [], "must end in .onnx"),
        (tmp_path / "nothing", "p.onnx", [], "is not a run directory"),
    ):
        assert export(path, tmp_path / out, *more) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not list(tmp_path.glob("*p.*"))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_names_the_extra(run, tmp_path, capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "roboloop.algos.graph", raising=False)  # as in a process that has not imported it
    assert export(run, tmp_path / "p.onnx") == 2
    assert f"export needs {package}: pip install 'roboloop[onnx]'" in capsys.readouterr().err
    assert not list(tmp_path.glob("*p.*"))


@pytest.mark.parametrize("named", [False, True])
def test_a_learner_of_ones_own_is_exported_whatever_its_observations_are_called(named):
    fields = {"obs_shape": (), "obs_dtype": np.dtype([("vector", np.float32, (3,))])}
    spec = dataclasses.replace(SPEC, **fields) if named else SPEC
    learner = ReplayLearner(TD3, TD3Config(hidden=(8,), processes=1), spec, 1, seed=0)
    assert_exported_acts_alike(shaken(learner.policy), spec)
