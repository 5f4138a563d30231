"""The verb ``export``: a run's policy as one ONNX file, a contract beside it, and proof that it acts as ours does.

Or as a frozen policy, to act inside an environment of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError, DiskError, UserError, needs_extra
from roboloop.core.files import disk_errors, remove, staged
from roboloop.core.options import Options
from roboloop.core.rng import derive
from roboloop.core.text import printable
from roboloop.core.types import Array, Decision, Env, EnvSpec, Policy, PortablePolicy
from roboloop.envs.frozen import SUFFIX
from roboloop.run.rundir import RunDir, find_run, installed
from roboloop.track.terminal import LiveLine

EXTRA = "onnx"
_PACKAGES = {"onnx", "onnxruntime", "onnxscript"}
_VERSIONS = ("roboloop", "torch", "numpy", "onnx", "onnxruntime", "onnxscript")
FORMAT = 1
PARITY_STEPS = 64
PARITY_LIMIT = 1e-4
"""Largest difference allowed, of actions in units in which their bounds are [-1, 1], and of memory."""


class ActsOtherwise(UserError):
    """The exported policy does not act as the run's does: nothing is written."""

    exit_code = 9


def export(args: list[str]) -> int:
    """Write a run's policy for runtimes that know nothing of us."""
    options = Options(prog="roboloop export", allow_abbrev=False)
    options.add_argument("run", type=Path, help="run directory, or an experiment with one run")
    kind = options.add_mutually_exclusive_group(required=True)
    kind.add_argument("--onnx", type=Path, metavar="OUT.onnx", help="the contract is OUT.json")
    frozen = "plain numbers, for a policy that acts inside an environment"
    kind.add_argument("--frozen", type=Path, metavar=f"OUT{SUFFIX}", help=frozen)
    options.add_argument("--checkpoint", default="best", help="'best', 'last' or a step")
    options.add_argument("--task", metavar="NAME", help="of a policy with several intentions; the main one by default")
    std = "with --frozen: deviation of its actions, where they reach from -1 to 1; what was learned unless given"
    options.add_argument("--std", type=float, metavar="X", help=std)
    known = options.parse_args(args)
    if known.frozen and known.task:
        raise ConfigError("--task is for --onnx")
    if known.frozen:
        return _export_frozen(known.run, known.checkpoint, known.frozen, known.std)
    if known.std is not None:
        raise ConfigError("--std is for --frozen: an ONNX policy does not explore")
    return _export_onnx(known.run, known.checkpoint, known.onnx, known.task or "")


def _export_frozen(path: Path, which: str, out: Path, std: float | None) -> int:
    """Write a policy that ``FrozenPolicy.load`` reads."""
    from roboloop.algos.frozen import freeze
    from roboloop.run import build

    if out.suffix != SUFFIX:
        raise ConfigError(f"--frozen must end in {SUFFIX}, not {out.name!r}")
    run = RunDir.open(find_run(path))
    point = run.pick(which)
    policy = build.policy_of(run.config, build.spec_of(run.config), point)
    about = {"algo": run.config.algo.name, "env": run.config.env.id, "checkpoint_step": point.step}
    frozen = freeze(policy, std, about)
    advice = "nothing is left of it; free space and try again"
    with disk_errors(str(out), advice), staged(out) as stage:
        stage.write_bytes(frozen.to_bytes())
    layers = frozen.layers
    sizes = f"{layers.obs_dim} numbers to {layers.action_dim} actions"
    print(f"{printable(out)}: {about['algo']} policy of step {point.step}, {sizes}")
    return 0


def _export_onnx(path: Path, which: str, out: Path, task: str) -> int:
    """Write a graph and its contract."""
    if out.suffix != ".onnx":
        raise ConfigError(f"--onnx must end in .onnx, not {out.name!r}")
    run, contract_path = RunDir.open(find_run(path)), out.with_suffix(".json")
    with needs_extra("export", _PACKAGES, EXTRA), _together(out, contract_path) as (stage, contract_stage):
        contract = write_policy(run, which, stage, task)
        contract_stage.write_text(json.dumps(contract, indent=1) + "\n")
    policy, parity = contract["policy"], contract["parity"]
    size = f"{out.stat().st_size / 1e3:.0f} kB"
    print(f"{printable(out)}: {policy['algo']} policy of step {policy['checkpoint_step']}, {size}")
    print(f"parity with ours over {parity['steps']} steps: {parity['max_difference']:.1e} (limit {parity['limit']:g})")
    print(f"contract: {printable(contract_path)}")
    return 0


@contextlib.contextmanager
def _together(out: Path, contract: Path) -> Iterator[tuple[Path, Path]]:
    """Yield where to write a policy and its contract; both get their names, or on a disk that fails neither."""
    is_new = not os.path.lexists(out)
    try:
        with (
            disk_errors(str(out), "nothing is left of it; free space and try again"),
            staged(contract) as contract_stage,
            staged(out) as stage,  # gets its name first: where there is a contract, all is whole
        ):
            yield stage, contract_stage
    except DiskError:
        if is_new and not os.path.lexists(contract):
            with contextlib.suppress(OSError):
                remove(out)
        raise


def write_policy(run: RunDir, which: str, out: Path, task: str = "") -> dict[str, Any]:
    """Write the policy of a checkpoint once it has proved equal; return its contract."""
    from roboloop.algos.graph import ACTION, MEMORY, MEMORY_AFTER, onnx_model
    from roboloop.envs import registry
    from roboloop.run import build

    cfg, point, line = run.config, run.pick(which), LiveLine()
    env = registry.make(cfg.env, evaluation=True)
    try:
        policy = of_task(build.policy_of(cfg, env.spec, point), task)
        model = onnx_model(policy)
        exported = OnnxPolicy(model)
        gap = largest_difference(policy, exported, env, cfg.env.frame_stack, line)
    finally:
        line.clear()
        env.close()
    if not gap <= PARITY_LIMIT:  # true for NaN as well
        raise ActsOtherwise(f"the exported policy differs from ours by {gap:.1e} (limit {PARITY_LIMIT:g}): not written")
    out.write_bytes(model)
    size = policy.memory_size
    return {
        "format": FORMAT,
        "file": {"name": out.name, "sha256": hashlib.sha256(model).hexdigest()},
        "observation": {"frame_stack": cfg.env.frame_stack, "fields": exported.fields()},
        "action": {"output": ACTION, "dtype": "float32", "columns": action_columns(env.spec)},
        "memory": {"size": size, "input": MEMORY, "output": MEMORY_AFTER, **exported.told} if size else None,
        "control_hz": env.spec.protocol.get("control_hz"),
        "policy": {
            "algo": cfg.algo.name, "run": str(run.path), "checkpoint_step": point.step, "version": policy.version,
        },
        "env": {"config": to_dict(cfg.env), "protocol": dict(env.spec.protocol)},
        "versions": installed(_VERSIONS),
        "parity": {"steps": PARITY_STEPS, "max_difference": gap, "limit": PARITY_LIMIT},
    }  # fmt: skip


def of_task(policy: PortablePolicy, name: str) -> PortablePolicy:
    """Return the policy of one task, of a policy that has several."""
    if hasattr(policy, "for_task"):
        one: PortablePolicy = policy.for_task(name)
        return one
    if name:
        raise ConfigError("--task is for policies that were trained for several tasks of one environment")
    return policy


def action_columns(spec: EnvSpec) -> list[dict[str, float | int]]:
    """Return the bounds of each action column, or among how many it chooses."""
    choices = spec.action_choices or (0,) * spec.action_dim
    return [
        {"choices": n} if n else {"low": low, "high": high}
        for n, low, high in zip(choices, spec.action_low, spec.action_high, strict=True)
    ]


class OnnxPolicy:
    """An exported policy in onnxruntime, on one thread: it never explores."""

    version = 0

    def __init__(self, model: bytes) -> None:
        import onnxruntime

        from roboloop.algos.graph import MEMORY, REWARD_SO_FAR
        from roboloop.nets.transformer import GATHERED

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = {i.name: i for i in self._session.get_inputs()}
        self._memory = MEMORY
        memory = self._inputs.pop(MEMORY, None)
        self.memory_size: int = 0 if memory is None else memory.shape[1]
        told = self._inputs.pop(REWARD_SO_FAR, None)
        self._told = None if told is None else (REWARD_SO_FAR, GATHERED)

    def act(self, obs: Array, memory: Array, explore: bool, rng: np.random.Generator) -> Decision:
        """Return the likeliest actions, also where it should explore."""
        is_record = obs.dtype.names is not None
        feed = {name: np.ascontiguousarray(obs[name] if is_record else obs) for name in self._inputs}
        if self.memory_size:
            feed[self._memory] = memory
        if self._told is not None:
            name, column = self._told
            feed[name] = memory[:, column]
        action, *after = self._session.run(None, feed)
        return Decision(action, after[0] if after else memory)

    @property
    def told(self) -> dict[str, str]:
        """The input that says how much reward the episode has brought so far, where there is one."""
        return {} if self._told is None else {"reward": self._told[0]}

    def observe_reward(self, memory: Array, reward: Array) -> Array:
        """Return the memory with more reward gathered, where the graph wants to know of it."""
        if self._told is None:
            return memory
        after = memory.copy()
        after[:, self._told[1]] += reward
        return after

    def fields(self) -> list[dict[str, Any]]:
        """Return name, shape and type of each field of an observation."""
        found = []
        for name, about in self._inputs.items():
            kind = about.type.removeprefix("tensor(").removesuffix(")")
            dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
            found.append({"name": name, "shape": about.shape, "dtype": dtype})
        return found


def largest_difference(policy: Policy, exported: Policy, env: Env, frame_stack: int, line: LiveLine) -> float:
    """Let both see what an environment shows our policy, each with its own memory; return how far they ever part."""
    from roboloop.algos.policy import ActionScale, in_bounds
    from roboloop.sample.acting import Acting
    from roboloop.sample.group import check_actions

    scale, rng = ActionScale(env.spec), np.random.default_rng(0)
    both = [Acting(env.spec, 1, frame_stack, each) for each in (policy, exported)]
    largest, episodes, ended = 0.0, 0, True
    for step in range(PARITY_STEPS):
        if line.is_due:
            line.show(f"compared over {step}/{PARITY_STEPS} steps")
        if ended:
            first = env.reset(derive(0, "export-parity", episodes))
            episodes += 1
            for each in both:
                each.begin(0, first)
        ours, theirs = (each.decide(False, rng) for each in both)
        check_actions(ours.action, env.spec.action_dim)
        actions = scale.to_unit(in_bounds(ours.action, env.spec)), scale.to_unit(theirs.action)
        pairs = actions, (ours.memory, theirs.memory)
        gaps = [np.abs(a - b).max(initial=0.0) for a, b in pairs]
        largest = float(np.max([largest, *gaps]))
        obs, reward, terminated, truncated, info = env.step(ours.action[0])
        for each in both:
            each.see(0, obs, info.get("raw_reward", reward))
        ended = terminated or truncated
    return largest
