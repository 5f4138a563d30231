"""Windows of a dataset's episodes for sequence models: drawn evenly over all steps, copied out of a bounded cache."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.rng import get_rng_state, set_rng_state, stream
from roboloop.core.types import Array, State, WindowBatch
from roboloop.data.dataset import Dataset
from roboloop.data.episodes import row_bytes
from roboloop.data.transitions import first_of


class WindowSampler:
    """Draws windows that begin at a step drawn evenly and end with their episode at the latest."""

    def __init__(
        self,
        dataset: Dataset,
        length: int,
        batch: int,
        seed: int,
        rows: Array | None = None,
        cache_bytes: int = 1 << 30,
        skip: int = 0,
        every: int = 1,
    ) -> None:
        """Draw from some episodes, or from all, beginning at each k-th step after their first ``skip`` ones."""
        rows = np.arange(len(dataset)) if rows is None else np.asarray(rows, np.int64)
        if not len(rows):
            raise DataError(f"dataset {dataset.directory} has no episodes to draw windows from")
        self._length = length
        self._rng = stream(seed, "windows")
        self._lengths: Array = dataset.table["length"][rows]
        self._ends = np.cumsum(self._lengths)
        self._begins = self._ends - self._lengths
        if self._lengths.min() <= skip:
            what = f"an episode of {self._lengths.min()} steps in {dataset.directory}"
            raise DataError(f"{what} has nothing after {skip} steps")
        firsts = [first_of(dataset.entry(row).facts, every, seed, skip) for row in rows.tolist()] if every > 1 else skip
        self._firsts, self._every = np.broadcast_to(np.asarray(firsts, np.int64), rows.shape), every
        counts = -(-(self._lengths - self._firsts) // every)  # of steps that windows begin at
        self._drawn_ends = np.cumsum(counts)
        self._drawn_begins = self._drawn_ends - counts
        self._action, self._return_to_go = _load_columns(dataset, rows, self._begins)
        chunks = _Chunks(dataset, rows, self._lengths, length)
        frames = int(self._ends[-1]) + len(rows)
        fits = frames * row_bytes(dataset.schema.spec) <= cache_bytes
        self._frames = _AllFrames(chunks) if fits else _SomeFrames(chunks, batch, cache_bytes)
        self._offsets = np.arange(length)
        spec = dataset.schema.spec
        lead = (batch, length)
        self._batch = WindowBatch(
            obs=np.zeros((*lead, *spec.obs_shape), spec.obs_dtype),
            action=np.zeros((*lead, spec.action_dim), np.float32),
            return_to_go=np.zeros(lead, np.float32),
            t=np.zeros(lead, np.int32),
            mask=np.zeros(lead, bool),
        )

    def sample(self) -> WindowBatch:
        """Draw a batch; its arrays are reused by the next call."""
        batch = self._batch
        draw = self._rng.integers(self._drawn_ends[-1], size=len(batch.t))
        episode = np.searchsorted(self._drawn_ends, draw, side="right")
        step = self._firsts[episode] + self._every * (draw - self._drawn_begins[episode])
        count = np.minimum(self._length, self._lengths[episode] - step)
        offset = self._offsets - (self._length - count)[:, None]  # negative in the padding
        np.greater_equal(offset, 0, out=batch.mask)
        index = (self._begins[episode] + step)[:, None] + offset
        np.take(self._action, index, axis=0, out=batch.action, mode="clip")
        np.take(self._return_to_go, index, out=batch.return_to_go, mode="clip")
        np.add(step[:, None], offset, out=batch.t, casting="same_kind")
        for column in (batch.action, batch.return_to_go, batch.t):
            column[~batch.mask] = 0
        self._frames.copy(episode, step, count, batch.obs)
        return batch

    def state(self) -> State:
        """Return what the next draws depend on."""
        return {"rng": get_rng_state(self._rng)}

    def load(self, state: State) -> None:
        """Go on with the draws of ``state``."""
        set_rng_state(self._rng, state["rng"])


def return_to_go(raw_reward: Array) -> Array:
    """Return the undiscounted reward of each step of an episode and all that follow."""
    return np.cumsum(raw_reward[::-1], dtype=np.float64)[::-1].astype(np.float32)


def _load_columns(dataset: Dataset, rows: Array, begins: Array) -> tuple[Array, Array]:
    """Return actions and returns to go of all episodes, one after another."""
    steps = int(dataset.table["length"][rows].sum())
    action = np.empty((steps, dataset.schema.spec.action_dim), np.float32)
    to_go = np.empty(steps, np.float32)
    for row, begin in zip(rows.tolist(), begins.tolist(), strict=True):
        columns = dataset.columns(row)
        span = slice(begin, begin + len(columns["reward"]))
        action[span] = columns["action"]
        # summed from the end in float64: the first one is then the return on record
        to_go[span] = return_to_go(columns["raw_reward"])
    return action, to_go


class _Chunks:
    """The chunks of observations of some episodes, numbered through."""

    def __init__(self, dataset: Dataset, rows: Array, lengths: Array, window: int) -> None:
        self._dataset = dataset
        self._entries = [dataset.entry(row) for row in rows.tolist()]  # a refresh may change what a row is
        self.obs_shape, self.obs_dtype = dataset.schema.spec.obs_shape, dataset.schema.spec.obs_dtype
        self.rows = dataset.schema.chunk_rows
        self.num_frames = lengths + 1  # per episode; the last one is in no window
        ends = np.cumsum(-(-self.num_frames // self.rows))
        self.count = int(ends[-1])
        self.first = np.concatenate([[0], ends[:-1]])
        self._reach = np.arange(-(-window // self.rows) + 1)
        self._pool = ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0))), "chunks")

    @property
    def per_window(self) -> int:
        """Chunks that a window touches at most."""
        return len(self._reach)

    def touched(self, episode: Array, step: Array, count: Array) -> Array:
        """Return the chunks that windows touch, each once."""
        first = self.first[episode] + step // self.rows
        last = self.first[episode] + (step + count - 1) // self.rows
        return np.unique(np.minimum(first[:, None] + self._reach, last[:, None]))

    def load(self, chunks: Array, outs: list[Array]) -> None:
        """Decode chunks into arrays, on all cores."""
        episode = np.searchsorted(self.first, chunks, side="right") - 1
        entries = [self._entries[e] for e in episode.tolist()]
        numbers = (chunks - self.first[episode]).tolist()
        # a list, so that an error in a thread is raised here
        list(self._pool.map(self._dataset.read_chunk, entries, numbers, outs))

    def num_rows(self, chunks: Array) -> Array:
        """Return how many observations chunks hold; the last one of an episode may be shorter."""
        episode = np.searchsorted(self.first, chunks, side="right") - 1
        left: Array = self.num_frames[episode] - (chunks - self.first[episode]) * self.rows
        return np.minimum(left, self.rows)


class _AllFrames:
    """All observations one after another, decoded when first asked for: a window is one contiguous copy."""

    def __init__(self, chunks: _Chunks) -> None:
        self._chunks = chunks
        self._begins = np.cumsum(chunks.num_frames) - chunks.num_frames
        self._frames = np.empty((int(chunks.num_frames.sum()), *chunks.obs_shape), chunks.obs_dtype)
        self._bytes = _byte_rows(self._frames, 1)
        self._ready = np.zeros(chunks.count, bool)
        self._all_ready = False

    def copy(self, episode: Array, step: Array, count: Array, out: Array) -> None:
        """Write windows right-aligned into ``out``, with zeros in front."""
        if not self._all_ready:
            self._load(self._chunks.touched(episode, step, count))
        length, source = out.shape[1], self._bytes
        begins = (self._begins[episode] + step).tolist()
        for window, begin, size in zip(_byte_rows(out, 2), begins, count.tolist(), strict=True):
            window[length - size :] = source[begin : begin + size]
            if size < length:
                window[: length - size] = 0

    def _load(self, touched: Array) -> None:
        missing = touched[~self._ready[touched]]
        if not len(missing):
            return
        chunks = self._chunks
        episode = np.searchsorted(chunks.first, missing, side="right") - 1
        begins = self._begins[episode] + (missing - chunks.first[episode]) * chunks.rows
        ends = begins + chunks.num_rows(missing)
        chunks.load(missing, [self._frames[b:e] for b, e in zip(begins.tolist(), ends.tolist(), strict=True)])
        self._ready[missing] = True
        self._all_ready = bool(self._ready.all())


class _SomeFrames:
    """As many decoded chunks as fit, at least those of one batch; the one that was decoded first makes room."""

    def __init__(self, chunks: _Chunks, batch: int, cache_bytes: int) -> None:
        self._chunks = chunks
        one = np.zeros((chunks.rows, *chunks.obs_shape), chunks.obs_dtype)
        num_slots = max(batch * chunks.per_window, cache_bytes // one.nbytes)
        self._slots = np.empty((num_slots, *one.shape), one.dtype)
        self._bytes = _byte_rows(self._slots, 2)
        self._slot_of = np.full(chunks.count, -1)
        self._held = np.full(num_slots, -1)  # the chunk in each slot
        self._hand = 0

    def copy(self, episode: Array, step: Array, count: Array, out: Array) -> None:
        """Write windows right-aligned into ``out``, with zeros in front."""
        self._load(self._chunks.touched(episode, step, count))
        length, rows, source = out.shape[1], self._chunks.rows, self._bytes
        first = self._chunks.first[episode] + step // rows
        places = zip(first.tolist(), (step % rows).tolist(), count.tolist(), strict=True)
        for window, (chunk, row, size) in zip(_byte_rows(out, 2), places, strict=True):
            at = length - size
            window[:at] = 0
            while at < length:
                take = min(rows - row, length - at)
                window[at : at + take] = source[self._slot_of[chunk], row : row + take]
                at, chunk, row = at + take, chunk + 1, 0

    def _load(self, touched: Array) -> None:
        slots = self._slot_of[touched]
        missing = touched[slots < 0]
        if not len(missing):
            return
        in_use = np.zeros(len(self._held), bool)
        in_use[slots[slots >= 0]] = True
        order = (self._hand + np.arange(len(self._held))) % len(self._held)
        free = order[~in_use[order]][: len(missing)]
        self._hand = int(free[-1]) + 1
        leaving = self._held[free]
        self._slot_of[leaving[leaving >= 0]] = -1
        self._held[free] = -1  # should decoding fail, nothing claims these slots
        counts = self._chunks.num_rows(missing).tolist()
        self._chunks.load(missing, [self._slots[s, :n] for s, n in zip(free.tolist(), counts, strict=True)])
        self._held[free] = missing
        self._slot_of[missing] = free


def _byte_rows(array: Array, lead: int) -> Array:
    """Return a view as rows of bytes: copying records field by field would be many times slower."""
    rows: Array = array.view(np.uint8).reshape(*array.shape[:lead], -1)
    return rows
