"""The recorder as training sees it: copies chosen environments into a ring and goes on, whatever the writer does."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.child import START_S, Child, innermost
from roboloop.core.config import to_dict
from roboloop.core.errors import ConfigError, DataError, DiskError, WorkerLost
from roboloop.core.state import counts_from, spec_to_data
from roboloop.core.types import Array, EnvSpec, EpisodeEnd, Rollout, State
from roboloop.data.config import RecordConfig
from roboloop.data.ring import COUNTS, DROPS, END, STEP_COLUMNS, Ring, end_row, layout_of
from roboloop.data.selection import ExpertBar, Selection

MB = 1_000_000
LOOK_S = 0.5
"""How often the writer is looked after."""
PATIENCE_S = 30.0
"""A writer that shows no sign of life for so long at the end of a run is given up."""
HANG_S = 120.0
"""A writer that shows no sign of life for so long in mid-training is replaced."""
ADMIT_BELOW = 0.5
"""Above this use of the ring no episode is begun, so that those that are running can be finished."""


ROLLOUTS_IN_RING = 5
RING_MB = 64


def ring_bytes(cfg: RecordConfig, spec: EnvSpec, num_envs: int, rollout_steps: int) -> int:
    """Return the size of the ring: as it was asked for, or room for some rollouts of all that is recorded."""
    rollout = cfg.num_streams(num_envs) * layout_of(spec, rollout_steps, 1, 1).num_bytes
    return cfg.ring_mb * MB or max(RING_MB * MB, ROLLOUTS_IN_RING * rollout)


@dataclass(frozen=True)
class RecordSource:
    """What the recorder must know of the run."""

    env_id: str
    spec: EnvSpec
    num_envs: int
    rollout_steps: int
    is_stacked: bool
    """Whether observations come with their history; only the newest frame is recorded."""
    seed: int
    about: dict[str, Any]
    """Kept in the dataset for its reader."""


class Recorder:
    """Never waits and never fails: what cannot be recorded is dropped by whole episodes, and counted."""

    def __init__(self, cfg: RecordConfig, source: RecordSource) -> None:
        self._cfg, self._source = cfg, source
        column_bytes = layout_of(source.spec, source.rollout_steps, 1, 1).num_bytes
        size = ring_bytes(cfg, source.spec, source.num_envs, source.rollout_steps)
        if 2 * column_bytes > size:
            raise ConfigError(f"record.ring_mb {cfg.ring_mb} is too small: one rollout has {column_bytes / MB:.1f} MB")
        self._ring_bytes, self._ring = size, Ring(size, source.spec)
        # all columns in one packet if that takes no more than a quarter of the ring
        self._columns_at_once = max(1, size // 4 // column_bytes)
        self._selection = Selection(cfg, source.num_envs, source.seed)
        self._bar = ExpertBar(cfg) if cfg.knows_experts else None
        self._is_on = np.zeros(source.num_envs, bool)  # the running episode has been recorded from its beginning
        self._is_fresh = np.zeros(source.num_envs, bool)  # the next row begins an episode
        self._chosen = {"episodes": 0, "steps": 0}
        self._dropped: Counter[str] = Counter()
        self._child: Child | None = None
        self._directory = Path()
        self._is_writing = False
        self._restarts = 0
        self._said: list[str] = []
        self._look_at_s = 0.0
        self._beats, self._silent_looks = -1, 0

    def begin(self, directory: Path, step: int) -> None:
        """Start the writer before the first iteration; what the dataset holds beyond this step was rolled back."""
        self._directory = directory
        self._start(step)
        while (why := self._await_start()) is not None:
            self._lose()
            if self._restarts > self._cfg.restarts:
                raise WorkerLost(f"{why}, more often than record.restarts allows")
            self._said.append(f"{why}; restarted ({self._restarts})")
            self._start(step)
        self._is_writing = True
        if step == 0:  # later, all environments are in the middle of episodes
            for env in range(self._source.num_envs):
                self._is_on[env] = self._selection.begin(env)
            self._is_fresh[:] = True

    def _await_start(self) -> str | None:
        """Wait until the writer is ready; return what became of it where it is not."""
        assert self._child is not None
        if not self._child.channel.connection.poll(START_S):
            return f"{self._name()} did not start in {START_S:g} s{innermost(self._child.where_it_hangs())}"
        try:
            answer = self._child.channel.receive()
        except (EOFError, OSError):
            return self._death()
        if "refused" in answer:
            raise (DiskError if answer["by_disk"] else DataError)(answer["refused"])
        return None

    def _name(self) -> str:
        assert self._child is not None
        return f"the recorder (pid {self._child.pid})"

    def _death(self) -> str:
        """Return how it ended, and the last line of what it left in its log."""
        assert self._child is not None
        first, *more = self._child.how_it_ended().splitlines()
        return f"{self._name()} {first}" + (f": {more[-1]}" if more else "")

    def _start(self, step: int | None) -> None:
        self._ring.reset()
        self._beats, self._silent_looks = -1, 0
        self._child = Child("recorder", "roboloop.data.recorder_process:main", [self._ring.memory.fd])
        with contextlib.suppress(OSError):  # it is dead: noticed when it is listened to, or looked after
            self._child.channel.send(self._job(step))

    def _job(self, step: int | None) -> dict[str, Any]:
        """Return what a writer must know; with a step, it begins a new segment there."""
        source = self._source
        return {
            "directory": str(self._directory), "step": step, "record": to_dict(self._cfg), "env_id": source.env_id,
            "spec": spec_to_data(source.spec), "seed": source.seed, "about": source.about,
            "ring_bytes": self._ring_bytes, "num_bytes": self._ring.memory.num_bytes,
        }  # fmt: skip

    def offer(self, rollout: Rollout, step: int) -> None:
        """Take over what is to be recorded of a rollout that ended at a step of the run."""
        steps, count = rollout.reward.shape
        first = rollout.first_env
        here = slice(first, first + count)
        for env in rollout.cut:  # its episode was lost, and row 0 begins another
            self._is_on[env] = self._begin_episode(env)
            self._is_fresh[env] = True
        is_on, is_fresh = self._is_on[here].copy(), self._is_fresh[here].copy()
        self._is_fresh[here] = False
        wanted = is_on.copy()
        episodes = sorted(rollout.episodes, key=lambda end: end.t)
        ends = np.zeros(len(episodes), END)
        for row, end in enumerate(episodes):
            self._count(end)
            if end.length:  # else the row of a reset: the episode after it has been chosen already
                self._is_on[end.env] = self._begin_episode(end.env)
            goes_on = bool(self._is_on[end.env])
            self._is_fresh[end.env] = end.t == steps - 1
            wanted[end.env - first] |= goes_on and end.t < steps - 1
            ends[row] = end_row(end, rollout, step, self._is_expert(end), goes_on)
        if not self._is_writing or not wanted.any():
            return
        for columns in self._portions(np.flatnonzero(wanted)):
            inside = set(columns.tolist()) if episodes else ()
            mine = [row for row, end in enumerate(episodes) if end.env - first in inside]
            if not self._put(rollout, columns, (is_on, is_fresh), ends[mine], [episodes[row].last_obs for row in mine]):
                self._drop(columns, first, is_on, ends[mine], steps)

    def _portions(self, columns: Array) -> Iterator[Array]:
        for begin in range(0, len(columns), self._columns_at_once):
            yield columns[begin : begin + self._columns_at_once]

    def _begin_episode(self, env: int) -> bool:
        """Say whether the episode that begins now is recorded."""
        is_chosen = self._selection.begin(env)
        if is_chosen and self._is_writing and self._ring.use > ADMIT_BELOW:
            self._note_drops("throttled", 1)
            return False
        return is_chosen and self._is_writing

    def _count(self, end: EpisodeEnd) -> None:
        if self._selection.is_chosen[end.env] and not end.lost:
            self._chosen["episodes"] += 1
            self._chosen["steps"] += end.length

    def _is_expert(self, end: EpisodeEnd) -> bool:
        return self._bar is not None and not end.lost and self._bar.passes(end.episode_return)

    def _put(
        self, rollout: Rollout, columns: Array, at_start: tuple[Array, Array], ends: Array, last_obs: list[Array]
    ) -> bool:
        """Copy some environments of a rollout into the ring; say whether there was room."""
        steps, count = rollout.reward.shape
        packet = self._ring.reserve(steps, len(columns), len(ends))
        if packet is None:
            return False
        obs = rollout.obs[:steps, :, -1] if self._source.is_stacked else rollout.obs[:steps]
        if len(columns) == count:
            packet.obs[...] = obs
        else:  # one by one: an index would copy twice
            for position, column in enumerate(columns.tolist()):
                packet.obs[:, position] = obs[:, column]
        pick: Any = slice(None) if len(columns) == count else columns
        for name in STEP_COLUMNS:
            getattr(packet, name)[...] = getattr(rollout, name)[:steps, pick]
        packet.env[:] = rollout.first_env + columns
        packet.is_on[:], packet.is_fresh[:] = (flags[columns] for flags in at_start)
        packet.version[:] = rollout.version[columns]
        if len(ends):
            packet.ends[:] = ends
            packet.ends["column"] = np.searchsorted(columns, ends["column"])
        for row, last in enumerate(last_obs):
            packet.last_obs[row] = last[-1] if self._source.is_stacked else last
        self._ring.publish()
        return True

    def _drop(self, columns: Array, first: int, is_on: Array, ends: Array, steps: int) -> None:
        """Give up every episode that had a part in what found no room."""
        begun = int((ends["goes_on"] & (ends["t"] < steps - 1)).sum())
        self._note_drops("backpressure", int(is_on[columns].sum()) + begun)
        self._is_on[first + columns] &= self._is_fresh[first + columns]

    def _note_drops(self, why: str, count: int) -> None:
        if not self._dropped and count:
            self._said.append("the recorder is behind: episodes are dropped, and counted in timing.jsonl")
        self._dropped[why] += count
        self._ring.drops[DROPS.index(why)] += count

    def saw_evaluation(self, episode_return: float) -> None:
        """Take note of an evaluation, for what is expert."""
        if self._bar is not None:
            self._bar.saw_evaluation(episode_return)

    def flush(self) -> None:
        """Ask the writer to commit what it has been given, without waiting for it."""
        self._ring.ask_for_commit()

    def messages(self) -> list[str]:
        """Return what there is to say since this was last asked; now and then, look after the writer."""
        if self._is_writing and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + LOOK_S
            self._look()
        lines, self._said = self._said, []
        return lines

    def _look(self) -> None:
        assert self._child is not None
        is_alive = self._child.is_alive()  # asked first: what it said before it went is then in the pipe
        with contextlib.suppress(EOFError, OSError):
            while self._child.channel.connection.poll(0):
                self._hear(self._child.channel.receive())
        if self._is_writing and not is_alive:
            self._replace(self._death())
        elif self._is_writing and self._hangs():
            self._replace(f"{self._name()} hung for {HANG_S:g} s{innermost(self._child.where_it_hangs())}")

    def _hangs(self) -> bool:
        """Say whether no beat was seen for long; counted in looks, so that a pause of this process is none of it."""
        beats = int(self._ring.beats[0])
        self._silent_looks = self._silent_looks + 1 if beats == self._beats else 0
        self._beats = beats
        return self._silent_looks * LOOK_S > HANG_S

    def _hear(self, message: dict[str, Any]) -> None:
        why = message.get("stopped") or message.get("refused")
        if why:
            self._is_writing = False
            self._said.append(f"recording stopped: {why}; training goes on")

    def _lose(self) -> None:
        assert self._child is not None
        self._child.kill()
        self._child.stop()
        self._restarts += 1

    def _replace(self, why: str) -> None:
        """Start another writer; what waited in the ring and all running episodes are lost to the dataset."""
        self._lose()
        if self._restarts > self._cfg.restarts:
            self._is_writing = False
            self._said.append(f"recording stopped: {why}, more often than record.restarts allows; training goes on")
            return
        self._said.append(f"{why}; restarted ({self._restarts})")
        lost = int((self._is_on & ~self._is_fresh).sum())
        self._is_on &= self._is_fresh
        self._start(None)
        self._note_drops("restart", lost)

    def stats(self) -> dict[str, float]:
        """Return what was chosen: it follows from the run alone, so it is the same in every repetition."""
        return {f"record/chosen_{name}": float(count) for name, count in self._chosen.items()}

    def timing(self) -> dict[str, float]:
        """Return what became of it: that depends on the machine."""
        counts = dict(zip(COUNTS, self._ring.counts.tolist(), strict=True))
        raw, stored, disk = counts.pop("raw_bytes"), counts.pop("stored_bytes"), counts.pop("disk_bytes")
        ratio = {"record/compression": raw / stored} if stored else {}
        return {
            **{f"record/{name}": float(count) for name, count in counts.items()},
            **{f"record/dropped_{why}": float(self._dropped[why]) for why in DROPS},
            "record/disk_mb": disk / MB,
            "record/ring_use": self._ring.use,
            **ratio,
        }

    def state(self) -> State:
        """Return what the choice of further episodes depends on; the writer keeps its own beside the dataset."""
        bar = self._bar.state() if self._bar is not None else {}
        return {"selection": self._selection.state(), "bar": bar, "chosen": dict(self._chosen)}

    def load(self, state: State) -> None:
        """Restore what ``state`` returned; a run that had no recorder then begins with the next episodes."""
        if state:
            self._selection.load(state["selection"])
            self._chosen.update(counts_from(state["chosen"]))
            if self._bar is not None and state["bar"]:
                self._bar.load(state["bar"])

    def close(self) -> None:
        """Let the writer finish what it has been given, as long as it shows signs of life."""
        if self._child is None:
            return
        if self._is_writing:
            with contextlib.suppress(OSError):
                self._child.channel.send({"do": "finish"})
            self._await_end()
        self._child.stop()
        self._child, self._is_writing = None, False

    def _await_end(self) -> None:
        assert self._child is not None
        beats, moved_s = -1, time.monotonic()
        while time.monotonic() - moved_s < PATIENCE_S:
            if int(self._ring.beats[0]) != beats:
                beats, moved_s = int(self._ring.beats[0]), time.monotonic()
            if not self._child.channel.connection.poll(LOOK_S):
                continue
            try:
                message = self._child.channel.receive()
            except (EOFError, OSError):
                self._said.append(f"{self._death()} at the end; commits are intact")
                return
            if "finished" in message:
                self._said.append(message["finished"])
                return
            self._hear(message)
            if not self._is_writing:
                return
        self._said.append(f"the recorder showed no sign of life for {PATIENCE_S:g} s and was ended; commits are intact")
        self._child.kill()
