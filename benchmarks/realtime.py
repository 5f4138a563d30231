"""How a robot at a fixed rate keeps its time while its policy is learned; the rig is the simulated Panda, in wall time.

idle      a pilot in a process of its own, and a learner that learns nothing
process   the same, and a learner that never stops: how roboloop trains by default
slack     one process: updates while there is time before the next tick (update.at: slack, per_step: .inf)
thread    one process: a learner in another thread, that never stops
before    one process, in the order of a loop that trains between the look and the command

Each runs in a process of its own, one after another at each rate. "obs to act" is the time from the look at the robot
until the command was sent, "forward" the policy's part of it, "lateness" the time from the deadline until the look,
"jitter" how far the time between two looks is from the period, "misses" deadlines that passed without an action.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roboloop.core.types import Array

RATES_HZ = (5.0, 20.0, 50.0)
MODES = ("idle", "process", "slack", "thread", "before")
REPLAY_STEPS = 2_000
"""Random transitions that are there from the start, so that learning does not wait for the robot."""
BEFORE_UPDATES = {5.0: 4, 20.0: 4, 50.0: 1}
"""Updates between look and command in ``before``: as many as a period has time for."""
BUSY = 0.97
"""Share of a period that the learner of ``process`` learns before it looks for the next step."""
EPISODE_S = 30.0
EDGES_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


# ---- one mode at one rate, in a process of its own ----


class Training:
    """A SAC run on the rig whose replay is full enough to learn from at once."""

    def __init__(self, is_inline: bool, hz: float) -> None:
        import numpy as np

        from roboloop.core.config import override
        from roboloop.run.build import build, spec_of
        from roboloop.run.config import Experiment
        from roboloop.sample.buffers import RolloutShape

        at = {"at": "slack", "per_step": float("inf")} if is_inline else {}
        panda = {"driver": "process", "hz": hz, "episode_s": EPISODE_S}
        cfg = override(
            Experiment(),
            {
                "env": {"id": "panda/reach", "frame_stack": 2, "panda": panda},
                "sample": {"real_time": "inline" if is_inline else "process", "restarts": 100},
                "update": at,
                "algo": {"processes": 1, "normalize_obs": True},
                "replay": {"capacity": 100_000},
                "warmup_steps": 0,
            },
        )
        self.period_s = 1 / hz
        parts = build(cfg)
        self.sampler: Any = parts.sampler
        self.store, self.algo, self.updates_due = parts.store, parts.algo, parts.updates_due
        self.updates, self.update_s = 0, 0.0
        rng = np.random.default_rng(0)
        rollout = RolloutShape(spec_of(cfg), REPLAY_STEPS, 1).allocate()
        rollout.obs[:] = rng.standard_normal(rollout.obs.shape, dtype=np.float32)
        rollout.action[:] = rng.uniform(-1, 1, rollout.action.shape)
        rollout.reward[:] = rng.standard_normal(rollout.reward.shape)
        self.store.add(rollout)
        for _ in range(20):  # warm
            self.algo.update(self.store.sample())

    def update(self) -> None:
        """Learn once."""
        begin_s = time.perf_counter()
        self.algo.update(self.store.sample())
        self.update_s += time.perf_counter() - begin_s
        self.updates += 1

    def close(self) -> None:
        """Let the robot go."""
        self.sampler.close()
        self.algo.close()


def alone(hz: float, seconds: float) -> dict[str, Any]:
    """Return how fast the learner is when nothing else is to be done."""
    training, begin_s = Training(True, hz), time.monotonic()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        training.update()
    training.close()
    return {"updates_per_s": training.updates / spent_s}


def piloted(hz: float, seconds: float, learns: bool) -> dict[str, Any]:
    """Learn in this process while another leads the robot."""
    training = Training(False, hz)
    step = training.sampler.collect(training.algo.policy)
    begin_s = time.monotonic()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        busy_until_s = time.monotonic() + BUSY * training.period_s
        while learns and time.monotonic() < busy_until_s:
            training.update()
        step = training.sampler.collect(training.algo.policy)
        training.store.add(step)
    training.sampler.rest()
    found = {"updates_per_s": training.updates / spent_s, **kept(training)}
    found["urgency"] = training.sampler.urgency
    training.close()
    return found


def slack(hz: float, seconds: float) -> dict[str, Any]:
    """Learn between two ticks while there is time."""
    training = Training(True, hz)
    slack_s = used_s = 0.0
    updates_in_ticks, steps = 0, 1
    in_ticks_s = 0.0
    for _ in training.updates_due(steps, True):  # how long an update takes is found out before the first episode
        training.update()
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < seconds:
        training.store.add(rollout := training.sampler.collect(training.algo.policy))
        steps += 1
        in_tick, left_s = training.sampler.in_tick, training.sampler.time_left_s()
        before, before_s = training.updates, training.update_s
        for _ in training.updates_due(steps, bool(rollout.episodes)):
            training.update()
        if in_tick:
            in_ticks_s += training.period_s
            slack_s += left_s
            used_s += training.update_s - before_s
            updates_in_ticks += training.updates - before
    training.sampler.rest()
    found = {"updates_per_s": updates_in_ticks / in_ticks_s, "slack_used": used_s / slack_s, **kept(training)}
    training.close()
    return found


def threaded(hz: float, seconds: float) -> dict[str, Any]:
    """Learn in a thread that never stops, on a policy that it shares with the robot's loop."""
    training, over = Training(True, hz), threading.Event()

    def learn() -> None:
        while not over.is_set():
            training.update()

    policy: Any = training.algo.policy
    acting = policy.snapshot()
    thread = threading.Thread(target=learn)
    thread.start()
    begin_s = time.monotonic()
    while (spent_s := time.monotonic() - begin_s) < seconds:
        training.sampler.collect(acting)
    over.set()
    thread.join()
    training.sampler.rest()
    found = {"updates_per_s": training.updates / spent_s, **kept(training)}
    training.close()
    return found


class Dawdling:
    """A policy that learns before it answers: what a loop does that trains between the look and the command."""

    def __init__(self, training: Training, updates: int) -> None:
        self._training, self._updates = training, updates
        self.memory_size = 0

    @property
    def version(self) -> int:
        """The learner's."""
        return int(self._training.algo.policy.version)

    def act(self, *args: Any) -> Any:
        """Learn, then decide."""
        for _ in range(self._updates):
            self._training.update()
        return self._training.algo.policy.act(*args)


def before(hz: float, seconds: float) -> dict[str, Any]:
    """Train between the look and the command."""
    training = Training(True, hz)
    begin_s, policy = time.monotonic(), Dawdling(training, BEFORE_UPDATES[hz])
    while (spent_s := time.monotonic() - begin_s) < seconds:
        training.store.add(training.sampler.collect(policy))
    training.sampler.rest()
    found = {"updates_per_s": training.updates / spent_s, **kept(training)}
    training.close()
    return found


def kept(training: Training) -> dict[str, Any]:
    """Return how all ticks of a run kept their time."""
    import numpy as np

    from roboloop.sample.pilot import Tick

    episodes: list[Array] = [ticks for ticks in training.sampler.take_ticks() if len(ticks)]
    ticks = np.concatenate(episodes)
    column = {name: number for number, name in enumerate(Tick._fields)}
    looks = [e[:, column["deadline_s"]] + e[:, column["lateness_s"]] for e in episodes]
    jitter_s = np.concatenate([np.abs(np.diff(look) - training.period_s) for look in looks])
    found: dict[str, Any] = {
        "ticks": len(ticks),
        "misses": int(training.sampler.stats().get("sample/missed_ticks", 0)),
        "jitter": spread(jitter_s),
        "faults": training.sampler.faults(),
    }
    for name in ("obs_to_act_s", "forward_s", "lateness_s"):
        found[name.removesuffix("_s")] = spread(ticks[:, column[name]])
    counts = np.histogram(1e3 * ticks[:, column["obs_to_act_s"]], bins=[0.0, *EDGES_MS, np.inf])[0]
    found["obs_to_act_histogram"] = counts.tolist()
    return found


def spread(seconds: Array) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    import numpy as np

    p50, p95, p99, most = (1e3 * np.percentile(seconds, [50, 95, 99, 100])).tolist()
    return {"p50": p50, "p95": p95, "p99": p99, "max": most}


def measure(mode: str, hz: float, seconds: float) -> dict[str, Any]:
    """Run one mode."""
    if mode == "alone":
        return alone(hz, seconds)
    if mode in ("idle", "process"):
        return piloted(hz, seconds, mode == "process")
    return {"slack": slack, "thread": threaded, "before": before}[mode](hz, seconds)


# ---- the benchmark ----


def in_a_process(mode: str, hz: float, seconds: float) -> dict[str, Any]:
    """Measure one mode by itself."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, "--serve", mode, str(hz), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise SystemExit(f"{mode} at {hz:g} Hz failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(hz: float, mode: str, found: dict[str, Any]) -> str:
    """Return one line of the table."""

    def cell(name: str) -> str:
        return " / ".join(f"{found[name][q]:.2f}" for q in ("p50", "p95", "p99", "max"))

    late = f"{found['misses']} of {found['ticks']}"
    used = f"{found['slack_used']:.0%}" if "slack_used" in found else ""
    names = ("obs_to_act", "forward", "lateness", "jitter")
    cells = [f"{hz:g}", mode, *(cell(name) for name in names), late, f"{found['updates_per_s']:.0f}", used]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hz", type=float, nargs="+", default=list(RATES_HZ), choices=RATES_HZ)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--minutes", type=float, default=1.0, help="of each mode at each rate")
    parser.add_argument("--process-minutes", type=float, default=10.0, help="of the mode 'process'")
    parser.add_argument("--out", type=Path, help="write all numbers as JSON, after each mode")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        mode, hz, seconds = args.serve
        print(json.dumps(measure(mode, float(hz), float(seconds))))
        return
    unthrottled = in_a_process("alone", args.hz[0], 20.0)["updates_per_s"]
    print(f"a learner alone: {unthrottled:.0f} updates/s; times are p50 / p95 / p99 / max in ms")
    title = ["Hz", "mode", "obs to act", "forward", "lateness", "jitter", "misses", "updates/s", "slack used"]
    print("| " + " | ".join(title) + " |\n" + "|---" * len(title) + "|", flush=True)
    results: dict[str, Any] = {"unthrottled_updates_per_s": unthrottled, "edges_ms": EDGES_MS}
    for hz in args.hz:
        for mode in args.modes:
            minutes = args.process_minutes if mode == "process" else args.minutes
            results[f"{mode} {hz:g} Hz"] = found = in_a_process(mode, hz, 60 * minutes)
            print(row(hz, mode, found), flush=True)
            if args.out:
                args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
