"""The writer process of a dataset: takes packets out of the ring, joins them into episodes, keeps within the budget."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roboloop.core.config import override
from roboloop.core.errors import DataError, DiskError, Unreadable, UserError
from roboloop.core.files import DISK_FAULTS, read_json, replace_durable
from roboloop.core.memory import SharedMemory
from roboloop.core.state import spec_from_data
from roboloop.core.types import Array
from roboloop.core.wire import Channel
from roboloop.data.assembly import Assembler, facts_at, raw_bytes
from roboloop.data.config import RecordConfig
from roboloop.data.episodes import Episode, Facts, Schema
from roboloop.data.retention import Live, retention_of
from roboloop.data.ring import COUNTS, DROPS, Packet, Ring
from roboloop.data.store import StoreWriter

NICE = 10
IDLE_S = 0.02
MB = 1_000_000
SHARDS_PER_BUDGET = 16
"""A shard is what compaction rewrites at once, so that much of the budget is kept free for it."""
SHARD_BYTES = (64 << 10, 64 << 20)
EVICTED_AT_ONCE = 10
"""One part in so many goes when the budget is full: room is made seldom and in one go."""
DEAD_AT_MOST = 5
"""Where more than one part in so many is dead, that is swept before anything else has to go."""
LINE_BYTES, CHUNK_BYTES = 512, 32
"""Upper bounds of what the index says of an episode and of each of its chunks."""


class StopRecording(Exception):
    """There is no room for what comes, and there will be none."""


def main(channel: Channel, memory_fd: int) -> None:
    """Serve until training has ended, has hung up, or there is no room."""
    os.nice(NICE)
    job = channel.receive()
    ring = Ring(job["ring_bytes"], spec_from_data(job["spec"]), SharedMemory(memory_fd, job["num_bytes"]))
    try:
        writer = Writer(job, ring)
    except (UserError, OSError) as error:
        by_disk = isinstance(error, DiskError | Unreadable) or (
            isinstance(error, OSError) and error.errno in DISK_FAULTS
        )
        channel.send({"refused": str(error), "by_disk": by_disk})
        return
    channel.send({"ready": True})
    try:
        writer.fit()
        if _serve(channel, ring, writer):
            channel.send({"finished": writer.finish()})
        else:
            writer.finish()
    except StopRecording as why:
        with contextlib.suppress(StopRecording):
            writer.finish()
        channel.send({"stopped": str(why)})


def _serve(channel: Channel, ring: Ring, writer: Writer) -> bool:
    """Take packets until there are none and training has ended; False when it has only hung up."""
    is_ending = False
    while True:
        packet = ring.peek()
        if packet is not None:
            writer.take(packet)
            ring.release()
        elif is_ending:
            return True
        ring.beats[0] += 1
        writer.tick()
        try:
            if not is_ending and channel.connection.poll(0 if packet is not None else IDLE_S):
                is_ending = channel.receive()["do"] == "finish"
        except (EOFError, OSError):
            return False


class Writer:
    """One dataset, its retention and its budget; every fault of the disk ends as StopRecording."""

    def __init__(self, job: dict[str, Any], ring: Ring) -> None:
        self._cfg = cfg = override(RecordConfig(), job["record"])
        self._ring, self._seed = ring, job["seed"]
        self._directory = Path(job["directory"])
        self._state_path = self._directory.with_name("record.json")
        self._retention = retention_of(cfg)
        self._counts: Counter[str] = Counter()
        self._drops_seen: Counter[str] = Counter()
        self._segment = -1
        self._saved = b""
        self._load_state()
        self._spec = spec = spec_from_data(job["spec"])
        self._assembler = Assembler()
        self._shard_bytes = SHARD_BYTES[1]
        if cfg.budget_bytes:
            self._shard_bytes = min(max(cfg.budget_bytes // SHARDS_PER_BUDGET, SHARD_BYTES[0]), SHARD_BYTES[1])
        schema = Schema.of(job["env_id"], spec, job["about"])
        self._store = StoreWriter(self._directory, schema, self._shard_bytes)
        self._schema, self._chunk_rows = schema, schema.chunk_rows
        self._step = 0
        self._used = self._store.disk_bytes
        self._limit = 0  # looked up when it matters
        self._unwritten = 0  # bytes of the index that the next commit will write
        self._commit_at_s, self._committed = time.monotonic() + cfg.commit_s, 0
        if job["step"] is not None:
            self._begin_segment(job["step"])

    def _load_state(self) -> None:
        if not self._directory.is_dir() or not self._state_path.exists():
            return  # a dataset that somebody removed begins anew
        saved = read_json(self._state_path)
        try:
            self._segment = int(saved["segment"])
            self._counts.update(saved["counts"])
            if saved["keep"] == self._cfg.keep:
                self._retention.load(saved["retention"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{self._state_path} is damaged: {type(error).__name__} {error}") from None

    def _begin_segment(self, step: int) -> None:
        """Evict what training has rolled back: it will come again, and no step may be there twice."""
        self._segment += 1
        self._step = step
        live = self._store.live
        gone = live["id"][live["step"] > step]
        self._counts["rolled_back"] += len(gone)
        self._store.evict(gone)
        self._store.note({"segment": self._segment, "begins_at_step": step, "rolled_back": len(gone)})
        self._commit()

    def fit(self) -> None:
        """Come down to the budget, which may be another one than before."""
        with _disk_faults():
            self._make_room(0)

    def take(self, packet: Packet) -> None:
        """Write the episodes that a packet completes and that are worth it."""
        for episode, end in self._assembler.add(packet):
            facts = facts_at(episode, end, self._schema.task_of(int(end["env"])), self._segment, self._seed)
            self._step = max(self._step, facts.step)
            with _disk_faults():
                self._keep(episode, facts, bool(end["is_expert"]))

    def _keep(self, episode: Episode, facts: Facts, is_expert: bool) -> None:
        if not self._retention.wants(facts, is_expert):
            self._counts["turned_away"] += 1
            return
        most = int(1.02 * raw_bytes(self._spec, facts.length)) + 3 * _index_bytes(facts.length, self._chunk_rows) + 4096
        if self._cfg.budget_bytes and most > self._cfg.budget_bytes // 2:
            self._counts["too_large"] += 1
            return
        self._make_room(most)
        if not self._retention.wants(facts, is_expert):  # making room has made it stricter
            self._counts["turned_away"] += 1
            return
        number = self._store.append(episode, facts)
        self._retention.added(number)
        self._used += most
        self._unwritten += _index_bytes(facts.length, self._chunk_rows)
        self._counts["recorded_episodes"] += 1
        self._counts["recorded_steps"] += facts.length

    def _make_room(self, most: int) -> None:
        """Leave room for so many bytes within the budget, or stop."""
        free = shutil.disk_usage(self._directory).free
        # what was appended is lost without its lines in the index, so their room must be left too
        if free - most - self._unwritten < self._cfg.min_free_mb * MB:
            raise StopRecording(f"{free / MB:.0f} MB are free, record.min_free_mb is {self._cfg.min_free_mb}")
        budget = self._cfg.budget_bytes
        while budget and self._used + most > self._limit:
            live = self._store.live
            self._used = self._store.disk_bytes  # it was counted too high: the codec is not known beforehand
            self._limit = budget - self._shard_bytes - int(_index_bytes(live["length"], self._chunk_rows).sum())
            if self._used + most <= self._limit:
                return
            too_much = max(self._used + most - self._limit, budget // EVICTED_AT_ONCE)
            dead = self._used - int(live["bytes"].sum())
            if dead < budget // DEAD_AT_MOST:
                gone = self._retention.victims(live, too_much)
                if not len(gone):
                    recorded = f"{self._used / MB:.1f} MB are recorded"
                    raise StopRecording(f"{recorded}, record.budget_mb is {self._cfg.budget_mb}")
                self._evict(gone, live)
            self._store.compact(self._limit - most)
            self._used = self._store.disk_bytes

    def _evict(self, gone: Array, live: Live) -> None:
        if len(gone):
            self._counts["evicted_episodes"] += len(gone)
            self._counts["evicted_steps"] += int(live["length"][np.isin(live["id"], gone)].sum())
            self._save_state()  # before the store: what retention remembers must never be laxer than what has gone
            self._store.evict(gone)

    def tick(self) -> None:
        """Commit when it is time, or when a checkpoint asked for it."""
        asked = self._ring.commit_is_due(self._committed)
        if asked or time.monotonic() >= self._commit_at_s:
            self._committed = asked or self._committed
            self._commit_at_s = time.monotonic() + self._cfg.commit_s
            with _disk_faults():
                self._commit()

    def _commit(self) -> None:
        live = self._store.live
        self._evict(self._retention.stale(live, self._step), live)
        self._save_state()
        self._store.commit()
        self._unwritten = 0
        live = self._store.live
        stored = int(live["bytes"].sum())
        self._store.compact(2 * stored + self._shard_bytes)  # also where there is no budget the dead must not pile up
        self._used = self._store.disk_bytes
        raw = raw_bytes(self._spec, live["length"]).sum()
        for name, size in (("raw_bytes", raw), ("stored_bytes", stored), ("disk_bytes", self._used)):
            self._counts[name] = int(size)
        self._ring.counts[:] = [self._counts[name] for name in COUNTS]

    def _save_state(self) -> None:
        for name, now in zip(DROPS, self._ring.drops.tolist(), strict=True):
            self._counts[f"dropped_{name}"] += now - self._drops_seen[name]
            self._drops_seen[name] = now
        self._counts.update(self._assembler.counts)
        self._assembler.counts.clear()
        state = {
            "segment": self._segment, "keep": self._cfg.keep, "retention": self._retention.state(),
            "counts": dict(self._counts),
        }  # fmt: skip
        data = json.dumps(state).encode()
        if data != self._saved:
            replace_durable(self._state_path, data)
            self._saved = data

    def finish(self) -> str:
        """Commit, close and say what there is."""
        with _disk_faults():
            self._commit()
            self._store.close()
        live = self._store.live
        steps, disk = int(live["length"].sum()), self._store.disk_bytes
        dropped = sum(self._counts[f"dropped_{why}"] for why in DROPS)
        text = f"dataset {self._directory}: {len(live['id'])} episodes, {steps} steps, {disk / MB:.1f} MB"
        return f"{text}; {dropped} episodes were dropped" if dropped else text


@contextlib.contextmanager
def _disk_faults() -> Iterator[None]:
    """Turn what the disk may do into the end of recording."""
    try:
        yield
    except (OSError, UserError) as error:
        raise StopRecording(" ".join(str(error).split())) from error


def _index_bytes(length: Any, chunk_rows: int) -> Any:
    return LINE_BYTES + CHUNK_BYTES * (length // chunk_rows + 2)
