"""Evaluation: fixed goals, one seed per episode, one line per episode; a killed evaluation goes on where it was."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.errors import DataError, RobotFault, UserError, WorkerLost
from roboloop.core.raised import CRASHES, where
from roboloop.core.rng import derive, stream
from roboloop.core.types import Array, Env, Holding, Policy
from roboloop.envs.env import SimulatorDied, counted
from roboloop.sample.acting import Acting
from roboloop.sample.group import EnvBroken, check_actions
from roboloop.track.metrics import JsonlLog, finite
from roboloop.track.read import WEIGHTS, read_jsonl
from roboloop.track.stats import bootstrap_interval, wilson_interval

VALIDATION, TEST = "validation", "test"
"""Training looks at the first and may choose by it; what is reported is measured on the second."""
MOST_FAULTS = 3
"""Faults of a robot after one another, with no episode finished between them, at which an evaluation gives up; deaths
of a simulator in one episode, after which it counts as it stood."""


@dataclass(frozen=True)
class Summary:
    """What an evaluation found; intervals are 95 %."""

    episodes: int
    success: float
    success_low: float
    success_high: float
    episode_return: float
    return_low: float
    return_high: float
    length: float
    by_task: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of a set of tasks: success, its interval and the return of each."""

    def metrics(self) -> dict[str, float]:
        """Return the summary as metric names."""
        whole = {k: v for k, v in asdict(self).items() if k not in ("episodes", "by_task")}
        metrics = {f"eval/{k.removeprefix('episode_')}": v for k, v in whole.items()}
        of_tasks = {f"eval/{k}/{task}": facts[k] for task, facts in self.by_task.items() for k in ("success", "return")}
        return metrics | of_tasks


@dataclass(frozen=True)
class Plan:
    """Which episodes to run, of each task where there are several; equal plans on equal policies give equal results."""

    episodes: int
    seed: int
    split: str

    def episode_seed(self, episode: int) -> int:
        """Return the reset seed of one episode; the split keeps it apart from training and from other splits."""
        return derive(self.seed, f"evaluation-{self.split}", episode)


class Evaluator:
    """Runs plans in its own environments, several in lock step; a robot holds whenever no episode runs.

    Of K tasks, lane and episode e are of task e mod K; episode n of each has the seed that episode n of one task has.
    """

    def __init__(
        self, make_env: Callable[[int], Env], frame_stack: int, lanes: int, beat: Callable[[], None] = lambda: None
    ) -> None:
        self._make_env, self._beat = make_env, beat
        self._frame_stack = frame_stack
        self._lanes = lanes
        self._envs: list[Env] = []
        self.watch: Callable[[int, int, int], None] = lambda done, total, steps: None
        """Called after each step with the episodes that are done, of how many, and the steps so far."""
        self._done = self._total = self._steps = 0

    def run(
        self,
        policy: Policy,
        plan: Plan,
        out: Path | None = None,
        about: dict[str, Any] | None = None,
        tell: Callable[[str], None] = lambda said: None,
    ) -> Summary:
        """Evaluate; with ``out`` each finished episode is one line there, and lines already there are not run again."""
        self.make_envs()
        header = {"plan": asdict(plan), "protocol": dict(self._envs[0].spec.protocol), **(about or {})}
        known = _known_episodes(out, header) if out else {}
        log = JsonlLog(out) if out else None
        if log and not log.mark().offset:
            log.write(header)
        rows = dict(known)
        self._done, self._total, self._steps = len(known), plan.episodes * max(1, len(self._tasks)), 0
        try:
            for row in self._missing(policy, plan, known, tell):
                rows[row["episode"]] = row
                self._done += 1
                if log:
                    log.write(row)
        finally:
            for env in self._envs:
                _hold(env)
            if log:
                log.close()
        return summarise(list(rows.values()))

    def make_envs(self) -> None:
        """Make the simulators that are missing."""
        while len(self._envs) < self._lanes:
            self._envs.append(self._make_env(len(self._envs)))
            self._beat()

    @property
    def _tasks(self) -> tuple[str, ...]:
        return self._envs[0].spec.own_tasks

    def _seed(self, plan: Plan, episode: int) -> int:
        return plan.episode_seed(episode // max(1, len(self._tasks)))

    def _missing(
        self, policy: Policy, plan: Plan, known: Collection[int], tell: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """Run the episodes that are not known; one in which a robot fails is begun again and does not count."""
        faults = 0
        for first in range(0, self._total, self._lanes):
            left = [e for e in range(first, min(first + self._lanes, self._total)) if e not in known]
            while left:
                try:
                    for row in self._wave(policy, plan, left, tell):
                        left.remove(row["episode"])
                        faults = 0
                        yield row
                except RobotFault as fault:
                    faults += 1
                    what = f"{type(fault).__name__}: {str(fault).splitlines()[0]}"
                    if faults == MOST_FAULTS:
                        raise WorkerLost(f"the robot failed {faults} times in a row, at last by {what}") from fault
                    tell(f"{what}; begun again: episode {', '.join(map(str, left))}")

    def _wave(
        self, policy: Policy, plan: Plan, episodes: Sequence[int], tell: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """Run up to one episode per lane; one whose simulator dies is begun again in a new one."""
        # a lane is fixed by the episode, and the batch always has all lanes, so that an episode's numbers do not
        # depend on which others are still to do
        acting = Acting(self._envs[0].spec, self._lanes, self._frame_stack, policy)
        rng = stream(plan.seed, "evaluation-policy")
        running = {e % self._lanes: e for e in episodes}
        tally, deaths = {lane: _nothing_yet() for lane in running}, dict.fromkeys(running, 0)
        for lane, episode in running.items():
            with _named_faults(f"reset of episode {episode}"):
                acting.begin(lane, self._envs[lane].reset(self._seed(plan, episode)))
            self._beat()
        for lane in set(range(self._lanes if self._tasks else 0)) - running.keys():
            # an idle lane too shows its task: which rows a head has must not depend on which episodes are to do
            acting.begin(lane, self._envs[lane].reset(0))
            self._beat()
        while running:
            action = acting.decide(False, rng).action
            check_actions(action, self._envs[0].spec.action_dim)
            raw_reward = np.zeros(self._lanes, np.float32)
            for lane, episode in list(running.items()):
                try:
                    with _named_faults(f"episode {episode}"):
                        raw_reward[lane], ended = self._step(lane, action[lane], acting, tally[lane])
                except SimulatorDied as death:
                    deaths[lane] += 1
                    self._renew(lane)
                    # what the policy does may be what breaks it: such an episode would never end
                    ended = deaths[lane] == MOST_FAULTS
                    said = "counted as it stood" if ended else "begun again"
                    tell(f"the simulator of episode {episode} died: {death}; {said}")
                    if not ended:
                        acting.begin(lane, self._envs[lane].reset(self._seed(plan, episode)))
                        tally[lane] = _nothing_yet()
                if ended:
                    del running[lane]
                    _hold(self._envs[lane])
                    about = {"episode": episode, "seed": self._seed(plan, episode)}
                    task = {"task": self._tasks[episode % len(self._tasks)]} if self._tasks else {}
                    yield {**about, **task, **_plain(tally[lane])}
            acting.observe_reward(raw_reward)

    def _step(self, lane: int, action: Array, acting: Acting, tally: dict[str, float]) -> tuple[float, bool]:
        """Return the env's own reward, and whether the episode has ended."""
        obs, reward, terminated, truncated, info = self._envs[lane].step(action)
        self._beat()
        self._steps += 1
        self.watch(self._done, self._total, self._steps)
        raw_reward = float(info.get("raw_reward", reward))
        acting.stack.push(lane, obs)
        tally["return"] += raw_reward
        tally["length"] += 1
        tally["success"] = float(np.fmax(tally["success"], info.get("success", math.nan)))
        tally.update(counted(info))
        return raw_reward, terminated or truncated

    def _renew(self, lane: int) -> None:
        """Replace a simulator that died."""
        self._envs[lane].close()
        self._envs[lane] = self._make_env(lane)
        self._beat()

    def close(self) -> None:
        """Close the simulators."""
        for env in self._envs:
            env.close()


@contextlib.contextmanager
def _named_faults(what: str) -> Iterator[None]:
    """Turn an exception of an environment's own code into one line; faults that can be mended go on."""
    try:
        yield
    except (UserError, RobotFault, SimulatorDied, MemoryError):
        raise
    except CRASHES as error:
        raise EnvBroken(f"the environment broke in the evaluation, {what}: {where(error)}") from error


def _nothing_yet() -> dict[str, float]:
    return {"return": 0.0, "length": 0, "success": math.nan}


def _hold(env: Env) -> None:
    """Have a robot stay where it is; one that cannot be told holds by itself."""
    if isinstance(env, Holding):
        with contextlib.suppress(RobotFault):
            env.hold()


def summarise(rows: Sequence[dict[str, Any]]) -> Summary:
    """Return means with a Wilson interval for success and a bootstrap interval for the return; of all, and by task."""
    of_tasks = sorted((row for row in rows if "task" in row), key=lambda row: row["episode"])
    tasks = dict.fromkeys(row["task"] for row in of_tasks)
    parts = {task: _summary([row for row in rows if row["task"] == task]) for task in tasks}
    by_task = {
        task: {
            "success": part.success, "success_low": part.success_low, "success_high": part.success_high,
            "return": part.episode_return,
        }
        for task, part in parts.items()
    }  # fmt: skip
    return replace(_summary(rows), by_task=by_task)


def _summary(rows: Sequence[dict[str, Any]]) -> Summary:
    returns = np.array([r["return"] for r in rows])
    success = np.array([math.nan if r["success"] is None else r["success"] for r in rows])
    known = bool(np.isfinite(success).all())
    low, high = wilson_interval(int((success > 0).sum()), len(rows)) if known else (math.nan, math.nan)
    return_low, return_high = bootstrap_interval(returns)
    rate = float((success > 0).mean()) if known else math.nan
    length = float(np.mean([r["length"] for r in rows]))
    return Summary(len(rows), rate, low, high, float(returns.mean()), return_low, return_high, length)


def _known_episodes(out: Path, header: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the finished episodes of an earlier, interrupted evaluation with the same header."""
    lines = read_jsonl(out)
    if not lines:  # none yet, or killed while the first line was written
        return {}
    # a run may have been moved since; older versions wrote down where it was
    older = () if WEIGHTS in lines[0] else (WEIGHTS,)
    if _without(lines[0], "run") != _without(json.loads(json.dumps(finite(header))), "run", *older):
        raise DataError(f"{out} holds another evaluation: give this one its own --name")
    try:
        return {int(row["episode"]): _checked_row(row) for row in lines[1:]}
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{out} is damaged: {type(error).__name__} {error}") from None


def _without(header: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {key: value for key, value in header.items() if key not in left_out}


def _checked_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of an episode if it has what a summary needs."""
    for name in ("return", "length"):
        if not isinstance(row[name], int | float):
            raise TypeError(f"{name} is {row[name]!r}")
    if row["success"] is not None and not isinstance(row["success"], int | float):
        raise TypeError(f"success is {row['success']!r}")
    return row


def _plain(tally: dict[str, float]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in tally.items()}
