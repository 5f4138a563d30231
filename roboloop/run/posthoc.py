"""Evaluation after training: a checkpoint's policy alone, without the trainer, on goals nobody has tuned on."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from roboloop.core.config import override, to_dict
from roboloop.core.errors import ConfigError, DataError, UserError
from roboloop.core.files import own_directory, replace_atomic
from roboloop.core.flags import parse_flags
from roboloop.core.sealed import Chain
from roboloop.core.tasks import forced_schedule
from roboloop.core.text import printable
from roboloop.core.types import Array, Env, Policy, PortablePolicy
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.run import build, checkpoint
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.config import Experiment
from roboloop.run.elsewhere import name_of, with_env
from roboloop.run.evaluate import TEST, Evaluator, Plan, Summary
from roboloop.run.rundir import RunDir
from roboloop.run.runner import describe
from roboloop.track.metrics import finite, line_of
from roboloop.track.read import AFTERWARDS, WEIGHTS
from roboloop.track.terminal import LiveLine, count, table

ALL = "all"
_VIDEO_EPISODES = 3
_FRAMES_AFTER_SUCCESS = 15
_FASTEST_FPS, _EPISODE_S = 30.0, 8.0
"""A whole episode is shown for so long, unless that were more pictures a second than are of use."""


@dataclass(frozen=True)
class EvalRequest:
    """What is asked of an evaluation after training."""

    episodes: int
    seed: int = 0
    name: str | None = None
    """Of the results file; none = by checkpoint and plan."""
    video: bool = False
    target: float | None = None
    schedule: str = ""
    """Tasks whose policies act one after another, as of roboloop record; the last one is judged."""
    env_id: str | None = None
    """Another environment than the run's."""
    env_flags: tuple[str, ...] = ()
    """Other settings of the environment than the run's, as --env.KEY VALUE."""
    pick: str = ""
    """Another way to pick than the run's, of those that learn alike."""

    def __post_init__(self) -> None:
        check_episodes(self.episodes)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the environment is not as it was in training."""
        return self.env_id is not None or bool(self.env_flags)

    def config(self, run: RunDir) -> Experiment:
        """Return the run's config, with the environment to evaluate in."""
        return with_env(run.config, self.env_id, self.env_flags)

    @property
    def plan(self) -> Plan:
        """The episodes."""
        return Plan(self.episodes, self.seed, TEST)

    @property
    def suffix(self) -> str:
        """End of the names of files, by the environment, the target or the schedule."""
        where = f"-{name_of(self.env_id or '', self.env_flags)}" if self.is_elsewhere else ""
        where += f"-{self.pick}" if self.pick else ""
        if self.schedule:
            return f"{where}-" + self.schedule.replace(":", "").replace(",", "-")
        return where if self.target is None else f"{where}-target{self.target:g}"

    def name_of(self, step: int) -> str:
        """Return the name of a checkpoint's results file."""
        if self.name is not None:
            return f"{self.name}-{checkpoint.step_name(step)}"
        return f"{TEST}-{checkpoint.step_name(step)}-{self.episodes}x{self.seed}"


def check_episodes(episodes: int) -> None:
    """Refuse an evaluation of no episodes."""
    if episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {episodes}")


def show(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def evaluate_run(path: Path, which: str, wish: EvalRequest, tell: Callable[[str], None] = show) -> dict[int, Summary]:
    """Evaluate a checkpoint or all, and return what was found by step.

    A killed evaluation of the same name goes on with the episodes it lacks.
    """
    run = RunDir.open(path)
    cfg = wish.config(run)
    if wish.video and (which == ALL or cfg.env.on_wall_clock):
        raise ConfigError("--video is for one checkpoint in a simulator: not for all, and a robot has no pictures")
    if wish.video:
        _check_pictures(cfg.env)
    exam = _CheckpointEvaluator(run, wish, cfg, tell)
    try:
        if wish.target is not None:
            tell(f"asked for a return of {wish.target:g}")
        if which == ALL:
            return _evaluate_all(run, exam, wish, tell)
        point = run.pick(which, tell)
        policy, summary, out = exam.take(point, wish.name or wish.name_of(point.step))
        _report(summary, out, tell)
        if wish.video:
            video = _record(policy, cfg, own_directory(run.path / "videos") / f"evaluation{wish.suffix}.mp4", wish.plan)
            tell(f"video: {printable(video)}")
        return {point.step: summary}
    finally:
        exam.close()


class _CheckpointEvaluator:
    """One plan for any checkpoint of a run, in the same environments."""

    def __init__(self, run: RunDir, wish: EvalRequest, cfg: Experiment, tell: Callable[[str], None]) -> None:
        self._run, self._wish, self._cfg = run, wish, cfg
        self._trained = picking_by(run, wish.pick) if wish.pick else run.config
        self._spec = build.spec_of(cfg)
        judged = forced_schedule(wish.schedule)[-1][0] if wish.schedule else ""
        self._tester = build.evaluator(cfg, wish.episodes, judged)
        self._seen = _Seen(self._tester, tell)

    def take(self, point: Checkpoint, name: str) -> tuple[PortablePolicy, Summary, Path]:
        """Return a checkpoint's policy, how it did, and where its episodes are."""
        run, target = self._run, self._wish.target
        policy = build.policy_of(self._trained, self._spec, point)
        about: dict[str, Any] = {"checkpoint_step": point.step, WEIGHTS: point.weights}
        if self._wish.is_elsewhere:
            about["env"] = to_dict(self._cfg.env)
        if target is not None:
            policy = with_target_return(policy, target, run)
            about["target"] = target
        if self._wish.schedule:
            policy = with_schedule(policy, self._wish.schedule, run)
            about["schedule"] = self._wish.schedule
        if self._wish.pick:
            about["pick"] = self._wish.pick
        out = own_directory(run.path / "eval") / f"{name}{self._wish.suffix}.jsonl"
        with self._seen.of(f"step {point.step}: ") as tell:
            return policy, self._tester.run(policy, self._wish.plan, out, about, tell), out

    def close(self) -> None:
        """Let go of simulators and robots."""
        self._tester.close()


class _Seen:
    """Shows on a terminal how far an evaluation is."""

    def __init__(self, tester: Evaluator, tell: Callable[[str], None]) -> None:
        self._line, self._of, self._show = LiveLine(), "", tell
        if tell is show:
            tester.watch = self._watch

    @contextlib.contextmanager
    def of(self, what: str = "") -> Iterator[Callable[[str], None]]:
        """Name what is evaluated; yield how to print beside the live line."""
        self._of = what
        try:
            yield self._tell
        finally:
            self._line.clear()

    def _watch(self, done: int, total: int, steps: int) -> None:
        if self._line.is_due:
            self._line.show(f"{self._of}{done}/{total} episodes, {count(steps)} steps")

    def _tell(self, said: str) -> None:
        self._line.clear()
        self._show(said)


def _evaluate_all(
    run: RunDir, exam: _CheckpointEvaluator, wish: EvalRequest, tell: Callable[[str], None]
) -> dict[int, Summary]:
    """Evaluate every checkpoint, oldest first, and write the rows that training would have written."""
    out = run.path / AFTERWARDS.replace(".", f"{wish.suffix}.")
    rows: list[dict[str, Any]] = []
    found: dict[int, Summary] = {}
    lines = [("step", "success", "return")]
    for step in checkpoint.steps(run.checkpoints):
        try:
            point = run.checkpoint_at(step)
        except DataError as error:
            tell(f"{printable(error)}; left out")
            continue
        _, summary, _ = exam.take(point, wish.name_of(step))
        found[step] = summary
        tell(f"step {step}: {describe(summary)}")
        rows.append({"step": step, **summary.metrics()})
        success = "-" if math.isnan(summary.success) else f"{summary.success:.0%}"
        lines.append((str(step), success, f"{summary.episode_return:.1f}"))
        # after each: who evaluates on a robot for hours may look meanwhile
        chain = Chain()
        replace_atomic(out, b"".join(line_of(row, chain) for row in rows))
    if not rows:
        raise DataError(f"{run.path} has no checkpoint that verifies")
    tell(f"{table(lines)}\nrows: {printable(out)}")
    return found


def with_target_return(policy: PortablePolicy, target: float, run: RunDir) -> PortablePolicy:
    """Return a policy that follows a target return, such as a Decision Transformer, with another target."""
    if not getattr(policy, "follows_target", False):
        raise DataError(f"--target is for Decision Transformers: {run.path} trained {run.config.algo.name}")
    aimed: PortablePolicy = cast("Any", policy).with_target(target)
    return aimed


def with_schedule(policy: PortablePolicy, schedule: str, run: RunDir) -> PortablePolicy:
    """Return a policy of several tasks that follows a schedule."""
    if not hasattr(policy, "with_schedule"):
        raise DataError(f"--task and --schedule are for policies of several tasks: {run.path} trained "
                        f"{run.config.algo.name}")  # fmt: skip
    led: PortablePolicy = policy.with_schedule(forced_schedule(schedule))
    return led


def picking_by(run: RunDir, way: str) -> Experiment:
    """Return the config of a run that learned to place any pick, with another way to pick."""
    algo: Any = run.config.algo
    if getattr(algo, "places_only", False):
        return override(run.config, {"algo": {"pick": way}})
    trained = f"{algo.name} {getattr(algo, 'pick', '')}".rstrip()
    raise DataError(f"--pick is for policies that place any pick (mvp, uniform): {run.path} trained {trained}")


def evaluate_expert(expert_id: str, episodes: int, seed: int, flags: Sequence[str] = ()) -> int:
    """Evaluate a scripted expert, ``ENV`` or ``ENV:NAME``, with the protocol that policies are evaluated with."""
    check_episodes(episodes)
    env_id, _, name = expert_id.partition(":")
    cfg = parse_flags(Experiment(env=EnvConfig(id=env_id)), list(flags))
    expert = registry.scripted_policy(cfg.env, name)
    tester = build.evaluator(cfg, episodes)
    try:
        with _Seen(tester, show).of():
            summary = tester.run(expert, Plan(episodes, seed, TEST))
        _report(summary, None, show)
    finally:
        tester.close()
    return 0


def _report(summary: Summary, out: Path | None, tell: Callable[[str], None]) -> None:
    tell(f"held-out evaluation: {describe(summary)}")
    if summary.by_task:
        tell(table([("task", "success", "95 %", "return"), *(_task_line(*item) for item in summary.by_task.items())]))
    if out:
        replace_atomic(out.with_suffix(".summary.json"), json.dumps(finite(asdict(summary)), indent=1).encode())
        tell(f"episodes: {printable(out)}")


def _task_line(task: str, facts: dict[str, float]) -> tuple[str, ...]:
    success, low, high = (
        "-" if math.isnan(facts[k]) else f"{facts[k]:.0%}" for k in ("success", "success_low", "success_high")
    )
    return task, success, f"{low} to {high}", f"{facts['return']:.1f}"


def _check_pictures(cfg: EnvConfig) -> None:
    """Raise ConfigError where an environment cannot be rendered, before minutes are spent on its evaluation."""
    env = registry.make(cfg, True)
    try:
        env.reset(0)
        _picture(env, cfg.id)
    finally:
        env.close()


def _picture(env: Env, env_id: str) -> Array:
    try:
        return env.render()
    except UserError as error:
        raise type(error)(f"--video: {error}") from error
    except Exception as error:  # an environment of the user's may raise anything here
        why = " ".join(str(error).split()) or "it has no render"
        raise ConfigError(f"--video: env {env_id!r} cannot be rendered: {type(error).__name__}: {why}") from error


class _Film:
    """Collects pictures of one episode, from how it began until shortly after its success."""

    def __init__(self, env: Env, env_id: str) -> None:
        self._env, self._env_id = env, env_id
        self.frames: list[Array] = [_picture(env, env_id)]
        self._left = -1

    def watch(self, succeeded: bool) -> bool:
        """Take a picture; return False when the film is over."""
        self.frames.append(_picture(self._env, self._env_id))
        if succeeded and self._left < 0:
            self._left = _FRAMES_AFTER_SUCCESS
        self._left -= self._left > 0
        return self._left != 0


def _record(policy: Policy, cfg: Experiment, out: Path, plan: Plan) -> Path:
    """Film the first episodes of a plan, one after another; of a set of tasks, the first of each of the first tasks."""
    import numpy as np

    from roboloop.sample.acting import Acting
    from roboloop.track.video import write_video

    rng = np.random.default_rng(plan.seed)
    frames: list[Array] = []
    tasks = registry.task_set(cfg.env.id)
    for episode in range(min(_VIDEO_EPISODES, plan.episodes * max(1, len(tasks)))):
        env = registry.make(cfg.env, True, episode)
        acting = Acting(env.spec, 1, cfg.env.frame_stack, policy)
        acting.begin(0, env.reset(plan.episode_seed(episode // max(1, len(tasks)))))
        film, ended = _Film(env, cfg.env.id), False
        while not ended:
            obs, reward, terminated, truncated, info = env.step(acting.decide(False, rng).action[0])
            acting.see(0, obs, info.get("raw_reward", reward))
            ended = not film.watch(info.get("success", 0.0) > 0) or terminated or truncated
        frames += film.frames
        # an episode of thirty picks would be over in a second
        fps = min(_FASTEST_FPS, max(1.0, env.spec.max_episode_steps / _EPISODE_S))
        env.close()
    return write_video(frames, out, fps)
