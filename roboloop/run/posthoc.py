"""Evaluation after training: a checkpoint's policy alone, without the trainer, on goals nobody has tuned on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from roboloop.core.errors import DataError
from roboloop.core.types import Array, Env, Policy, PortablePolicy, RewardAware
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run import build, checkpoint
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.evaluate import TEST, Evaluator, Plan, Summary
from roboloop.run.rundir import RunDir
from roboloop.run.runner import describe

_VIDEO_EPISODES = 3
_FRAMES_AFTER_SUCCESS = 15


def evaluate_run(
    path: Path, which: str, episodes: int, seed: int, name: str | None, video: bool, target: float | None = None
) -> None:
    """Evaluate a checkpoint; a killed evaluation of the same name goes on with the episodes it lacks."""
    run = RunDir.open(path)
    point = pick(run, which)
    plan = Plan(episodes, seed, TEST)
    name = name or f"{TEST}-{checkpoint.step_name(point.step)}-{episodes}x{seed}"
    name += "" if target is None else f"-target{target:g}"
    out = run.path / "eval" / f"{name}.jsonl"
    tester = build.evaluator(run.config, min(episodes, 10))
    try:
        spec = registry.make(run.config.env, evaluation=True).spec
        policy = build.policy_of(run.config, spec, point.state)
        about: dict[str, str | int | float] = {"run": str(run.path), "checkpoint_step": point.step}
        if target is not None:
            policy = aimed_at(policy, target, run)
            about["target"] = target
            print(f"asked for a return of {target:g}")
        summary = tester.run(policy, plan, out, about)
        _report(summary, out)
        if video:
            _record(policy, run, plan)
    finally:
        tester.close()


def aimed_at(policy: PortablePolicy, target: float, run: RunDir) -> PortablePolicy:
    """Return a Decision Transformer that is asked for another return."""
    from roboloop.algos.imitation import ImitationPolicy

    if not isinstance(policy, ImitationPolicy) or run.config.algo.name != "dt":
        raise DataError(f"--target is for Decision Transformers: {run.path} trained {run.config.algo.name}")
    return policy.with_target(target)


def pick(run: RunDir, which: str) -> Checkpoint:
    """Return the checkpoint called 'best', 'last' or by its step."""
    if which == "last" or which == "best":
        for point in checkpoint.newest_first(run.checkpoints, print):
            best = int(point.state["best"]["step"])
            if which == "best" and best in checkpoint.steps(run.checkpoints):
                return checkpoint.at_step(run.checkpoints, best)
            return point
        raise DataError(f"{run.path} has no checkpoint that verifies")
    if not which.isdecimal():
        raise DataError(f"--checkpoint must be 'best', 'last' or a step, not {which!r}")
    return checkpoint.at_step(run.checkpoints, int(which))


def evaluate_expert(env_id: str, episodes: int, seed: int) -> int:
    """Evaluate a scripted expert with the protocol that policies are evaluated with."""
    expert = registry.scripted_policy(env_id)
    tester = Evaluator(lambda: registry.make(EnvConfig(id=env_id), evaluation=True), 1, min(episodes, 10))
    try:
        _report(tester.run(expert, Plan(episodes, seed, TEST)), None)
    finally:
        tester.close()
    return 0


def _report(summary: Summary, out: Path | None) -> None:
    print(f"held-out evaluation: {describe(summary)}")
    if out:
        out.with_suffix(".summary.json").write_text(json.dumps(asdict(summary), indent=1))
        print(f"episodes: {out}")


class _Film:
    """Collects pictures of one episode until shortly after its success."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.frames: list[Array] = []
        self._left = -1

    def watch(self, succeeded: bool) -> bool:
        """Take a picture; return False when the film is over."""
        self.frames.append(self._env.render())
        if succeeded and self._left < 0:
            self._left = _FRAMES_AFTER_SUCCESS
        self._left -= self._left > 0
        return self._left != 0


def _record(policy: Policy, run: RunDir, plan: Plan) -> None:
    """Film the first episodes of a plan, one after another."""
    import numpy as np

    from roboloop.sample.stack import FrameStack
    from roboloop.track.video import write_video

    env = registry.make(run.config.env, evaluation=True)
    stack = FrameStack(env.spec, 1, run.config.env.frame_stack)
    rng = np.random.default_rng(plan.seed)
    frames: list[Array] = []
    for episode in range(min(_VIDEO_EPISODES, plan.episodes)):
        film, ended = _Film(env), False
        stack.reset(0, env.reset(plan.episode_seed(episode)))
        memory = np.zeros((1, policy.memory_size), np.float32)
        while not ended:
            action, memory, *_ = policy.act(stack.stacked, memory, False, rng)
            obs, reward, terminated, truncated, info = env.step(action[0])
            stack.push(0, obs)
            if isinstance(policy, RewardAware):
                memory = policy.feel(memory, np.array([info.get("raw_reward", reward)], np.float32))
            ended = not film.watch(info.get("success", 0.0) > 0) or terminated or truncated
        frames += film.frames
    env.close()
    print(f"video: {write_video(frames, run.path / 'videos' / 'evaluation.mp4', fps=30)}")
