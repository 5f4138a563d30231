"""The launcher: brings runs to their end in slots, one command each, and can be killed at any moment.

A run is queued, running, and then done, failed, lost (its process vanished), stopped or pruned. All that counts is on
disk: whoever starts the same sweep again skips what is done, adopts what still runs, and goes on with the rest.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roboloop.core.errors import DataError
from roboloop.core.processes import memory_bytes
from roboloop.core.stop import StopRequest
from roboloop.launch.engine import JobEngine, Local, Started
from roboloop.launch.job import EXISTS, Job
from roboloop.launch.slots import Slot
from roboloop.run.commands import STOPPED
from roboloop.track.terminal import duration

SOME_FAILED = 10
"""Exit code of a sweep of which not everything got done."""
POINTLESS = {2: "bad input", 6: "it diverged"}
"""Exit codes of runs that would end in the same way again."""
POLL_S = 0.2
QUICK_S = 30.0
"""A run that dies within this has not even begun."""
_MEMORY_EVERY_S = 2.0
_REPORT_EVERY_S = 60.0
_ROOM_EVERY_S = 10.0


@dataclass(frozen=True)
class Rules:
    """When to try again and when to give up."""

    retries: int = 1
    """How often a run that failed or vanished is started again."""
    fail_fast: int = 3
    """Start nothing more when the first so many runs die at once; 0 = never."""
    timeout_s: float = 0.0
    """Longest time of one start, from when it has begun; 0 = any."""
    memory_mb: int = 0
    """Most memory of one run; 0 = any."""
    silent_s: float = 0.0
    """A run that writes nothing for so long hangs: it is ended and gone on with; 0 = never."""
    grace_s: float = 120.0
    """Time to save after SIGTERM, before SIGKILL."""


class Supply(Protocol):
    """Where runs come from: a list, or a search that makes them up as it goes."""

    def next(self) -> Job | None:
        """Return the next run to start; none if there is none now."""
        ...

    def unwanted(self, job: Job) -> bool:
        """Return whether a running run should be stopped early."""
        ...

    def ended(self, job: Job, state: str) -> None:
        """Hear of a run that has ended for good."""
        ...


class Queue:
    """A list of runs, each wanted to its end."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)

    def next(self) -> Job | None:
        """Return them in their order."""
        return self._jobs.popleft() if self._jobs else None

    def unwanted(self, job: Job) -> bool:
        """Want all."""
        return False

    def ended(self, job: Job, state: str) -> None:
        """Do nothing."""


@dataclass
class Active:
    """A run that is being worked on: our own child, or one that we found running."""

    job: Job
    slot: Slot | None
    """None where an adopted run finds no slot free."""
    process: Started | None
    began_s: float
    """As long as it waits for room in a cluster, now."""
    ending: str = ""
    """Why it was asked to end: stopped, pruned, time, memory, silence."""
    ending_s: float = 0.0
    heard_s: float = 0.0
    heard: tuple[tuple[int, int] | None, ...] = ()
    """Sizes and times of what it writes, at the last look."""
    looked_s: float = 0.0

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; say whether there was somebody to send it to."""
        return (self.process or self.job).send(number)


class Launcher:
    """Runs everything that a supply has, at most one run for each slot."""

    def __init__(
        self,
        supply: Supply,
        slots: Sequence[Slot],
        rules: Rules,
        say: Callable[[str], None],
        known: Counter[str],
        engine: JobEngine | None = None,
    ) -> None:
        self._engine = engine or Local()
        self._supply, self._slots, self._rules, self.say = supply, list(slots), rules, say
        self._active: list[Active] = []
        self._again: deque[Job] = deque()
        self._failures: Counter[Job] = Counter()
        self._at_rest: dict[Job, str] = {}
        """Runs that ended without being done, and how; a wish may wake them."""
        self.counts = known
        """How many runs are in each final state."""
        self.reasons: dict[Job, str] = {}
        self._first: list[Job] = []
        """The runs that were started first, as many as count for giving up."""
        self._died_at_once: set[Job] = set()
        self._some_lived, self._hopeless = bool(known["done"] or known["pruned"]), False
        self._warned = False
        self._looked_for_room_s = time.monotonic()

    def adopt(self, jobs: Iterable[Job]) -> None:
        """Take charge of runs that were found running; each keeps its slot."""
        for job in jobs:
            number = job.facts().get("slot")
            slot = next((s for s in self._free_slots() if s.index == number), None) or self._free_slot()
            self._active.append(Active(job, slot, None, time.monotonic()))
            self._some_lived = True
            self.say(f"adopted  {job}, process {job.pid}")

    def run(self) -> int:
        """Work until nothing is left or a signal asks for the end; return an exit code."""
        report_s = time.monotonic() + _REPORT_EVERY_S
        with StopRequest() as stop:
            while True:
                for active in [a for a in self._active if self._has_ended(a)]:
                    self._active.remove(active)
                    self._judge(active)
                if stop:
                    self._end_all()
                else:
                    self._hear_wishes()
                    self._fill()
                if not self._active:
                    break
                self._watch()
                if time.monotonic() > report_s:
                    report_s = time.monotonic() + _REPORT_EVERY_S
                    self.say(self.summary())
                time.sleep(POLL_S)
        if stop:
            return STOPPED
        return SOME_FAILED if self._hopeless or set(self.counts) - {"done", "pruned"} else 0

    def summary(self) -> str:
        """Return how many runs are how."""
        parts = [f"{self.counts[state]} {state}" for state in ("done", "pruned", "failed", "lost", "stopped", "held")
                 if self.counts[state]]  # fmt: skip
        parts += [f"{len(self._active)} running"] if self._active else []
        etas = [info.eta_s for a in self._active if (info := a.job.info()) and info.eta_s is not None]
        wait = f", the next in {duration(min(etas))}" if etas else ""
        return (", ".join(parts) or "nothing to do") + wait

    def _fill(self) -> None:
        """Start runs while there is room for them."""
        if self._hopeless:
            return
        self._look_for_room()
        while len(self._active) < len(self._slots) and (slot := self._free_slot()) is not None:
            job = self._supply.next() or (self._again.popleft() if self._again else None)
            if job is None:
                return
            if job.is_held():
                self._rest(job, "held", "stopped by the user")
                continue
            try:
                process = self._engine.start(job, slot, self._warn)
            except DataError as error:  # its folder cannot be used: that is no reason to end the others
                self._give_up(job, "failed", str(error))
                continue
            self._active.append(Active(job, slot, process, time.monotonic()))
            if process and job not in self._first and len(self._first) < self._rules.fail_fast:
                self._first.append(job)
            self.say(f"{'started ' if process else 'adopted '} {job} in {slot}")

    def _look_for_room(self) -> None:
        """Take the slots of machines that have joined a cluster since; those of lost ones wait for others."""
        if time.monotonic() - self._looked_for_room_s > _ROOM_EVERY_S:
            self._looked_for_room_s = time.monotonic()
            self._slots += self._engine.more_slots(len(self._slots))

    def _has_ended(self, active: Active) -> bool:
        return active.process.poll() is not None if active.process else not active.job.is_live()

    def _judge(self, active: Active) -> None:
        """Decide what the end of a process means for its run."""
        job, code = active.job, active.process.returncode if active.process else None
        info = job.info()
        said = info.state if info else "not begun"
        if code is not None:
            job.note(exit_code=code)
        if code == EXISTS and info and said == "running":  # somebody else has begun with it: that is as good
            self._active.append(Active(job, active.slot, None, time.monotonic()))
            return
        stopped_itself = code == STOPPED or (code is None and said == "stopped")
        if job.is_done():
            self._finish(job, "done", active)
        elif active.ending == "pruned":
            self._finish(job, "pruned", active)
        elif active.ending == "time":
            self._give_up(job, "failed", f"longer than {self._rules.timeout_s:g} s")
        elif active.ending == "stopped" or (not active.ending and stopped_itself):
            self._finish(job, "held" if job.is_held() else "stopped", active)
        else:
            self._retry(active, code, said)

    def _retry(self, active: Active, code: int | None, said: str) -> None:
        """Start a run again that failed or vanished, unless it did so too often or would do so again."""
        job = active.job
        vanished = active.ending or (code is not None and code < 0) or (code is None and said in ("lost", "running"))
        state = "lost" if vanished else "failed"
        why = _why(active, code, job)
        # one that was found running and is gone was lost with its launcher, as far as is known
        if vanished and not active.ending and (active.process is None or active.process.machine_lost):
            self.say(f"lost     {job}: {why}; it goes on{' elsewhere' if active.process else ' later'}")
            self._again.append(job)
            return
        self._failures[job] += 1
        lived_s = time.monotonic() - active.began_s
        if active.process and lived_s < QUICK_S and not active.ending:
            self._died_at_once.add(job)
        if code in POINTLESS or self._failures[job] > self._rules.retries:
            self._give_up(job, state, why)
        else:
            self.say(f"{state:<8} {job}: {why}; it goes on later")
            self._again.append(job)
        limit = self._rules.fail_fast
        all_died = 0 < limit == len(self._first) and self._died_at_once.issuperset(self._first)
        if all_died and not self._some_lived and not self._hopeless:
            self._hopeless = True
            self.say(f"the first {limit} runs died within {QUICK_S:.0f} s: nothing more is started; "
                      f"last: {job}: {why}")  # fmt: skip
            for waiting in self._again:
                self._give_up(waiting, "failed", "it died at once")
            self._again.clear()

    def _give_up(self, job: Job, state: str, why: str) -> None:
        with contextlib.suppress(DataError):  # of a folder that cannot be used
            job.note(why=why, ended=state)
        self._rest(job, state, why)
        self._supply.ended(job, state)

    def _finish(self, job: Job, state: str, active: Active) -> None:
        self._some_lived = self._some_lived or state in ("done", "pruned")
        if state in ("done", "pruned"):
            job.note(ended=state)
            self.counts[state] += 1
            self.say(f"{state:<8} {job}, {duration(time.monotonic() - active.began_s)}")
        else:
            self._rest(job, state, "the same command goes on")
        self._supply.ended(job, state)

    def _rest(self, job: Job, state: str, why: str) -> None:
        self.counts[state] += 1
        self._at_rest[job] = state
        if state != "stopped":
            self.reasons[job] = why
        self.say(f"{state:<8} {job}: {why}")

    def _hear_wishes(self) -> None:
        """End runs that the user has stopped, wake those that are wanted again."""
        for active in self._active:
            if active.job.is_held():
                self._end(active, "stopped")
            elif not active.ending and self._supply.unwanted(active.job):
                self._end(active, "pruned")
        for job, state in list(self._at_rest.items()):
            if job.take_requeue():
                del self._at_rest[job], self._failures[job]
                self.reasons.pop(job, None)
                self.counts -= Counter([state])
                self._again.append(job)

    def _watch(self) -> None:
        """Hold running runs to the limits, and end those for good that were asked to end and did not."""
        now, rules = time.monotonic(), self._rules
        for active in self._active:
            if active.process and not active.process.has_begun:
                active.began_s = now
            self._some_lived = self._some_lived or now - active.began_s > QUICK_S
            if active.ending:
                if now - active.ending_s > rules.grace_s:
                    active.send(signal.SIGKILL)
                continue
            if rules.timeout_s and now - active.began_s > rules.timeout_s:
                self._end(active, "time")
            if rules.silent_s and now - _heard_s(active, now) > rules.silent_s:
                self._end(active, "silence")
            if rules.memory_mb and now - active.looked_s > _MEMORY_EVERY_S:
                active.looked_s = now
                pid = active.job.pid
                if pid and (memory_bytes(pid) or 0) > rules.memory_mb * 1_000_000:
                    self._end(active, "memory")

    def _end(self, active: Active, why: str) -> None:
        """Ask a run to save and end, once."""
        if not active.ending and active.send(signal.SIGTERM):
            active.ending, active.ending_s = why, time.monotonic()

    def _end_all(self) -> None:
        """Ask all runs to save and end; one that somebody started on another machine is left to them."""
        for active in list(self._active):
            self._end(active, "stopped")
            if not active.ending and active.process is None and not active.job.is_locked():
                self._active.remove(active)
                self.say(f"left     {active.job}: it runs on another machine")

    def _free_slots(self) -> list[Slot]:
        taken = [active.slot for active in self._active]
        return [slot for slot in self._slots if slot not in taken]

    def _free_slot(self) -> Slot | None:
        return next(iter(self._free_slots()), None)

    def _warn(self, line: str) -> None:
        if not self._warned:  # one line, not one for each run
            self._warned = True
            self.say(line)


def conclude(launcher: Launcher, live: Iterable[Job]) -> int:
    """Let a launcher work, beginning with what runs already, and say how it went."""
    launcher.adopt(live)
    code = launcher.run()
    launcher.say(launcher.summary())
    for job, why in launcher.reasons.items():
        launcher.say(f"  {job}: {why}; see: roboloop tail {shlex.quote(str(job))}")
    return code


def _heard_s(active: Active, now_s: float) -> float:
    """Return when a run was last seen to have written anything, by a clock that nobody sets."""
    files = [active.job.log, *(active.job.path / name for name in ("status.json", "metrics.jsonl", "timing.jsonl"))]
    heard = tuple(map(_stamp, files))
    if heard != active.heard:
        active.heard, active.heard_s = heard, now_s
    return max(active.began_s, active.heard_s)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.lstat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _why(active: Active, code: int | None, job: Job) -> str:
    if active.ending:
        return {"memory": "more memory than allowed", "silence": "it hung"}.get(active.ending, active.ending)
    if active.process and active.process.why:
        return active.process.why
    if code is None:
        return "its process is gone"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    what = f"exit code {code}{f' ({POINTLESS[code]})' if code in POINTLESS else ''}"
    said = job.last_words()
    return f"{what}: {said}" if said else what
