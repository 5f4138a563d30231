"""The loop of the whole system, and what happens around it: logs, evaluation, checkpoints, resume."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from roboloop.core.config import to_dict
from roboloop.core.errors import DataError
from roboloop.core.files import disk_errors
from roboloop.core.schedules import Every
from roboloop.core.stop import StopRequest
from roboloop.core.types import EpisodeAware, EpisodeEnd, PortablePolicy, Rollout, State
from roboloop.data import journal as journal_files
from roboloop.data.journal import START, Journal
from roboloop.data.replay import Replay
from roboloop.envs import registry
from roboloop.run import checkpoint
from roboloop.run.build import Parts, eval_lanes
from roboloop.run.checkpoint import Checkpoint
from roboloop.run.clock import Clock, Stopwatch
from roboloop.run.config import identity
from roboloop.run.evaluate import VALIDATION, Plan, Summary
from roboloop.run.observers import Observers
from roboloop.run.rundir import RunDir
from roboloop.track.metrics import JsonlLog, Meter, score
from roboloop.track.terminal import Progress
from roboloop.track.trackers.mirrors import Mirrors
from roboloop.track.trackers.tracker import TrackedRun, Tracker
from roboloop.track.usage import Usage

if TYPE_CHECKING:
    from roboloop.run.background import BackgroundEvaluator

STATEFUL = ("clock", "updates_due", "log_due", "eval_due", "save_due", "milestone_due", "meter", "sampler", "algo")
"""Parts of the runner that a checkpoint saves and loads by name; the store is loaded apart, from its journal."""


class Closable(Protocol):
    """Anything that holds files, simulators or processes."""

    def close(self) -> None:
        """Let go."""
        ...


class Runner:
    """Owns one run from its first step, or from a checkpoint, to its end."""

    def __init__(
        self,
        run: RunDir,
        parts: Parts,
        trackers: Mapping[str, Tracker],
        progress: Progress,
        stop: threading.Event | None = None,
    ) -> None:
        cfg = run.config
        self.cfg, self.run = cfg, run
        self.tasks = registry.task_set(cfg.env.id)
        self.sampler, self.store, self.algo, self.evaluator, self.warmup, self.updates_due, self.recorder, said = parts
        progress.note(said)
        about = TrackedRun(run.path, cfg.experiment, registry.task_name(cfg.env.id), cfg.seed, to_dict(cfg))
        self.mirrors, self.progress = Mirrors(trackers, about, run.metrics), progress
        self.metrics, self.timing = JsonlLog(run.metrics), JsonlLog(run.timing)
        self.clock, self.watch, self.meter = Clock(0 if cfg.is_offline else cfg.env.action_repeat), Stopwatch(), Meter()
        self.usage = Usage()
        self.log_due = Every(cfg.log_every_steps, first=cfg.log_every_steps)
        self.eval_due = Every(cfg.eval.every_steps, first=cfg.eval.every_steps)
        self.save_due = Every(cfg.checkpoint.every_steps, first=cfg.checkpoint.every_steps)
        self.milestone_due = Every(cfg.checkpoint.milestone_steps, first=cfg.checkpoint.milestone_steps)
        self.best: dict[str, float] = {"score": -math.inf, "step": -1}
        self.last: dict[str, float] = {}
        self.milestones: list[int] = []
        self.streak = 0  # evaluations in a row that reached eval.stop_success
        self.pending: dict[str, Any] | None = None  # an evaluation in the background, and its result once it is there
        self.eval_plan = Plan(cfg.eval.episodes, cfg.eval.seed, VALIDATION)
        self.background = self._background_evaluator() if cfg.eval.background else None
        self.observers = Observers(cfg.observers, cfg.observer_budget_s)
        self._stop = StopRequest(stop)
        self._has_journal = False
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._updates_before = 0  # by earlier processes
        self._pace: tuple[int, float] | None = None  # step and time at which this process had begun to learn
        self.evaluator.watch = self._watch_evaluation

    def _background_evaluator(self) -> BackgroundEvaluator:
        from roboloop.run.background import BackgroundEvaluator

        cfg = self.cfg
        lanes = eval_lanes(cfg.env, cfg.eval.episodes)
        return BackgroundEvaluator(cfg.env, lanes, self.algo.policy, cfg.sample.hang_s, self.progress.note)

    def train(self) -> str:
        """Train to the end, or until a signal asks for a clean stop; return 'done' or 'stopped'."""
        self._attach_journal()
        with self._stop:
            return self._train()

    def _train(self) -> str:
        try:
            self.mirrors.begin(self.metrics.mark().offset)
            self.recorder.begin(self.run.dataset, self.clock.step)
            with disk_errors(str(self.run.path)):
                while self.clock.step < self.cfg.steps and not self._solved() and not self._stop:
                    rollout = self.sampler.collect(self._policy())
                    self._take(rollout)
                    self.watch.lap("collect_s")
                    for _ in self.updates_due(self.clock.step, bool(rollout.episodes)):
                        self.algo.progress = (self.clock.step - rollout.num_steps) / self.cfg.steps
                        metrics = self.algo.update(self.store.sample())
                        self.meter.add(metrics)
                        self.observers.post("on_training_step", {**self.clock.counters(), **metrics})
                    self.clock.updates = self.algo.num_updates
                    self.watch.lap("update_s")
                    if self.clock.step >= self.cfg.steps:
                        self._rest()
                    self._after_iteration(rollout)
                self._rest()
                if not self._stop:
                    self._finish_evaluation()
                self.save()
                state = "stopped" if self._stop else "done"
                self._write_status(state)
        except BaseException:
            with contextlib.suppress(OSError):  # a full disk has its own message already
                self._write_status("failed")
            raise
        return state

    def _take(self, rollout: Rollout) -> None:
        self.store.add(rollout)
        if rollout.episodes and isinstance(self.algo, EpisodeAware) and isinstance(self.store, Replay):
            for facts in self.algo.on_episode_end(rollout, self.store.newest):
                self.meter.add(facts)
        self.clock.advance(rollout)
        self.recorder.offer(rollout, self.clock.step)

    def _rest(self) -> None:
        """Let a robot stand still before anything slow is done; steps that were on their way are not lost."""
        for rollout in self.sampler.rest():
            self._take(rollout)

    def _solved(self) -> bool:
        wanted = self.cfg.eval.stop_success
        return wanted is not None and self.streak >= self.cfg.eval.stop_evaluations

    def _policy(self) -> PortablePolicy:
        return self.warmup if self.clock.step < self.cfg.warmup_steps else self.algo.policy

    def _after_iteration(self, rollout: Rollout) -> None:
        """Log, evaluate and checkpoint, in this order, so that a checkpoint holds what was logged."""
        step = self.clock.step
        for end in rollout.episodes:
            if not end.lost:
                facts = _facts(end)
                self.meter.add(facts | self._facts_by_task(end, facts))
                self.observers.post("on_episode", {"step": step, "env": end.env, "episode": end.episode, **facts})
        if self.sampler.in_tick:
            return  # nothing slow while a robot waits for its next action: all of it is due again when it stands
        for line in (
            *self.sampler.faults(),
            *self.algo.messages(),
            *self.observers.messages(),
            *self.mirrors.messages(),
            *self.recorder.messages(),
        ):
            self.progress.note(line)
        if self._pace is None and self.clock.updates > self._updates_before:
            self._pace = step, self.watch.wall_s
        at_end = step >= self.cfg.steps
        if self.log_due(step) or at_end:
            self._log()
        elif self.progress.is_due:
            self.progress.move(step, self._eta_s())
        self.watch.lap("log_s")
        if self.cfg.eval.episodes and (self.eval_due(step) or at_end):
            self._evaluate(at_end)
            self.watch.lap("eval_s")
        if self._checkpoint_due(bool(rollout.episodes)):
            self.save()

    def _facts_by_task(self, end: EpisodeEnd, facts: dict[str, float]) -> dict[str, float]:
        if not self.tasks:
            return {}
        task = self.tasks[end.env % len(self.tasks)]
        return {f"{name}/{task}": facts[name] for name in ("train/success", "train/return") if name in facts}

    def _log(self) -> None:
        row = {**self.clock.counters(), **self.meter.flush(), **self.sampler.stats(), **self.recorder.stats()}
        self._write(row)
        self.last.update({k.removeprefix("train/"): v for k, v in row.items() if k.startswith("train/")})
        speeds = self.watch.speeds(self.clock)
        times = {"wall_s": self.watch.wall_s, **speeds, **self.watch.seconds}
        times |= self.recorder.timing() | self.sampler.timing() | self.usage.look()
        self.timing.write({"step": self.clock.step, **times})
        self.last.update(speeds)
        self._write_status("running")
        self.progress.update(
            self.clock.step,
            self.last.get("success"),
            self.last.get("return"),
            speeds["updates_per_s"],
            speeds["steps_per_s"],
            self._eta_s(),
        )

    def _write(self, row: dict[str, float]) -> None:
        self.metrics.write(row)
        self.mirrors.advance(self.metrics.mark().offset)

    def _evaluate(self, at_end: bool) -> None:
        # a result is written at the next evaluation or at the end, so that the log does not depend on who was faster
        self._finish_evaluation()
        if self.background is None:
            summary = self.evaluator.run(self.algo.policy, self.eval_plan, tell=self.progress.note)
            self._record(self.clock.step, summary)
            return
        self.background.begin(self.algo.policy, self.eval_plan)
        self.pending = {"step": self.clock.step, "summary": None}
        if at_end:
            self._finish_evaluation()

    def _await_evaluation(self) -> None:
        if self.pending is not None and self.pending["summary"] is None:
            assert self.background is not None
            self.pending["summary"] = asdict(self.background.result())

    def _finish_evaluation(self) -> None:
        if self.pending is not None:
            self._await_evaluation()
            self._record(self.pending["step"], Summary(**self.pending["summary"]))
            self.pending = None

    def _record(self, step: int, summary: Summary) -> None:
        self._write({"step": step, **summary.metrics()})
        self.recorder.saw_evaluation(summary.episode_return)
        self.last.update({"eval_success": summary.success, "eval_return": summary.episode_return})
        reached = score(summary.success, summary.episode_return)
        if reached > self.best["score"]:
            self.best = {"score": reached, "step": step}
        stop = self.cfg.eval.stop_success
        self.streak = self.streak + 1 if stop is not None and summary.success >= stop else 0
        self.progress.note(f"step {step}: evaluation {describe(summary)}")

    def _checkpoint_due(self, episode_ended: bool) -> bool:
        cfg, step = self.cfg.checkpoint, self.clock.step
        by_steps = self.save_due(step)  # asked first: a milestone is also the checkpoint of its step
        if self.milestone_due(step):
            self.milestones.append(step)
            return True
        by_time = cfg.every_s > 0 and time.monotonic() - self._saved_at >= cfg.every_s
        # what is being evaluated in the background may turn out to be the best: it is saved before that is known
        worth_it = self.best["step"] == step or (self.pending is not None and self.pending["step"] == step)
        return by_steps or by_time or (cfg.every_episode and episode_ended) or worth_it

    def save(self) -> None:
        """Commit everything at one frontier."""
        if self._saved_step == self.clock.step:
            return
        if self.pending is not None and self.pending["step"] != self.clock.step:
            self._await_evaluation()  # one that began at this very step can be begun again from this checkpoint
        self._attach_journal()
        frontier = self.store.commit()
        self.recorder.flush()
        self.metrics.sync()
        logs = {log.path.name: log.mark() for log in (self.metrics, self.timing)}
        self.watch.lap("log_s")
        seconds, config = self.watch.seconds, identity(self.cfg)
        point = Checkpoint(self.run.path, self.clock.step, self.state(), frontier, logs, seconds, config)
        checkpoint.save(self.run.checkpoints, point)
        keep = {*self.milestones, int(self.best["step"]), *([self.pending["step"]] if self.pending else [])}
        checkpoint.prune(self.run.checkpoints, self.cfg.checkpoint.keep_last, keep)
        self._saved_step, self._saved_at = self.clock.step, time.monotonic()
        self.observers.post("on_checkpoint", {"step": self.clock.step, "path": str(self.run.checkpoints)})
        self.watch.lap("checkpoint_s")

    def state(self) -> State:
        """Return everything the next iteration depends on."""
        return {
            **{name: getattr(self, name).state() for name in (*STATEFUL, "store")},
            "milestones": self.milestones,
            "best": self.best,
            "last": {k: v for k, v in self.last.items() if not k.endswith("_per_s")},
            "streak": self.streak,
            "pending": self.pending,
            "recorder": self.recorder.state(),
        }

    def resume(self, tell: Callable[[str], None]) -> int:
        """Load the newest checkpoint that verifies, journal included; return its step (0 = from the beginning)."""
        why = "none verifies"
        for point in self.run.newest_checkpoints(tell):
            try:
                self.metrics.check(point.logs[self.metrics.path.name])
                with checkpoint.fits(point.path):
                    records = journal_files.read(self.run.journal, point.journal)
                    self.store.load(point.state["store"], records)
                    self._load(point.state)
                if self.clock.step != point.step:
                    raise DataError(f"checkpoint {point.path} says that it is of step {self.clock.step}")
            except DataError as error:
                why = str(error)
                tell(f"{why}; trying the checkpoint before")
                continue
            self._go_on_from(point)
            return point.step
        if checkpoint.steps(self.run.checkpoints):
            raise DataError(f"no checkpoint in {self.run.checkpoints} can be resumed from: {why}")
        self.metrics.truncate(0)
        self.timing.truncate(0)
        return 0

    def _load(self, state: State) -> None:
        for name in STATEFUL:
            getattr(self, name).load(state[name])
        self.milestones = [int(step) for step in state["milestones"]]
        self.best = {"score": float(state["best"]["score"]), "step": int(state["best"]["step"])}
        self.last = {name: value + 0 for name, value in state["last"].items()}
        self.streak, self.pending = int(state["streak"]), state["pending"] if self.cfg.eval.episodes else None
        self.recorder.load(state.get("recorder", {}))
        if self.pending is not None:
            summary = self.pending["summary"]
            self.pending = {"step": int(self.pending["step"]), "summary": summary and asdict(Summary(**summary))}

    def _go_on_from(self, point: Checkpoint) -> None:
        """Cut what came after a checkpoint, and begin again what was under way at it."""
        if self.pending is not None and self.pending["summary"] is None:
            if self.background is None:  # a fork may evaluate in the foreground what its parent began beside training
                self.pending["summary"] = asdict(self.evaluator.run(self.algo.policy, self.eval_plan))
            else:
                self.background.begin(self.algo.policy, self.eval_plan)
        checkpoint.set_aside_after(self.run.checkpoints, point.step)
        self._attach_journal(point)
        self.metrics.truncate(point.logs[self.metrics.path.name].offset)
        self.timing.cut(point.logs[self.timing.path.name].offset)
        self.watch.resume(point.seconds, self.clock)
        self._saved_step, self._updates_before = point.step, self.clock.updates

    def _attach_journal(self, point: Checkpoint | None = None) -> None:
        if self.store.journaled and (point is not None or not self._has_journal):
            self._has_journal = True
            segment_bytes = self.cfg.replay.segment_mb << 20
            self.store.attach(Journal(self.run.journal, segment_bytes, point.journal if point else START))

    def _write_status(self, state: str) -> None:
        facts = {"step": self.clock.step, "steps": self.cfg.steps, "eta_s": self._eta_s(), "wall_s": self.watch.wall_s}
        shown = {"last_success": self.last.get("eval_success"), "last_return": self.last.get("eval_return")}
        for key, train_key in (("last_success", "success"), ("last_return", "return")):
            value = shown[key] if shown[key] is not None else self.last.get(train_key)
            shown[key] = None if value is None or math.isnan(value) else value
        speeds = {k: self.last.get(k) for k in ("steps_per_s", "updates_per_s")}
        self.run.write_status(state, {**facts, **shown, **speeds})

    def _eta_s(self) -> float | None:
        """Return the time left at the speed since learning began: the warm-up before it is many times faster."""
        left = max(self.cfg.steps - self.clock.step, 0)
        if not left or self._pace is None:
            return None if left else 0.0
        steps, seconds = self.clock.step - self._pace[0], self.watch.wall_s - self._pace[1]
        return left * seconds / steps if steps else None

    def _watch_evaluation(self, done: int, total: int, steps: int) -> None:
        if self.progress.is_due:
            self.progress.move(self.clock.step, self._eta_s(), f"evaluating {done}/{total}")

    def close(self) -> None:
        """Release logs, simulators and processes."""
        self.recorder.close()
        for line in self.recorder.messages():
            self.progress.note(line)
        parts: list[Closable] = [self.metrics, self.timing, *([self.background] if self.background else [])]
        for part in (*parts, self.observers, self.sampler, self.evaluator, self.algo):
            part.close()
        self.mirrors.close(self.progress.note)  # last, since it may have to wait
        self.progress.close()


def _facts(end: EpisodeEnd) -> dict[str, float]:
    """Return an episode as metrics; the shaped return only where it is another."""
    facts = {"train/return": end.episode_return, "train/length": float(end.length)}
    if not math.isnan(end.success):
        facts["train/success"] = end.success
    if end.shaped_return != end.episode_return:
        facts["train/shaped_return"] = end.shaped_return
    return facts | {f"train/{name}": value for name, value in (end.counted or {}).items()}


def describe(summary: Summary) -> str:
    """Return a summary in words."""
    text = f"return {summary.episode_return:.1f} [{summary.return_low:.1f}, {summary.return_high:.1f}]"
    if math.isnan(summary.success):
        return f"{text} over {summary.episodes} episodes"
    success = f"success {summary.success:.0%} [{summary.success_low:.0%}, {summary.success_high:.0%}]"
    return f"{success}, {text} over {summary.episodes} episodes"
