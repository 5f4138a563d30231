"""What stays when the budget is full: decisions over facts of episodes alone, without files, clocks or simulators.

Every kind keeps one promise: an episode that was turned away or has gone is never missed later, whenever the run ends.
So what remembers the past (thresholds) only ever gets stricter, and a rollback need not undo it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from roboloop.core.types import Array, State
from roboloop.data.config import RecordConfig
from roboloop.data.episodes import Facts

Live: TypeAlias = Mapping[str, Array]
"""The stored episodes: one array per field of ``Facts``, with ``id`` and ``bytes``."""

_NOBODY: Array = np.zeros(0, np.int64)
_EVERY_KEY = 1.0
"""Keys are drawn from [0, 1)."""


class Retention(Protocol):
    """Decides which episodes are written, and which go when there is no room."""

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Say whether a new episode is worth writing."""
        ...

    def added(self, number: int) -> None:
        """Learn the id of the episode that was wanted last, now that it is written."""
        ...

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Return the ids of episodes that go, at least so many bytes together; none if nothing may ever go."""
        ...

    def stale(self, live: Live, step: int) -> Array:
        """Return the ids of episodes that have no place any more, whether or not there is room."""
        ...

    def state(self) -> State:
        """Return what later decisions depend on."""
        ...

    def load(self, state: State) -> None:
        """Restore what ``state`` returned."""
        ...


class KeepAll:
    """Keeps everything there is room for; also what the other kinds have in common."""

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want every episode."""
        return True

    def added(self, number: int) -> None:
        """Remember nothing."""

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let nothing go: who asks has to stop."""
        return _NOBODY

    def stale(self, live: Live, step: int) -> Array:
        """Let nothing go."""
        return _NOBODY

    def state(self) -> State:
        """Return nothing."""
        return {}

    def load(self, state: State) -> None:
        """Restore nothing."""


class KeepLast(KeepAll):
    """Keeps the newest: those that fit, or those of the last percent of all steps so far."""

    def __init__(self, percent: float = 100.0) -> None:
        self._percent = percent

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let the oldest go."""
        return _until(live, _oldest_first(live), num_bytes)

    def stale(self, live: Live, step: int) -> Array:
        """Let go what ended before the last percent of the steps; the run may end now, so its end need not be known."""
        gone: Array = live["id"][live["step"] <= (1 - self._percent / 100) * step]
        return gone


class Reservoir(KeepAll):
    """Keeps the smallest of uniform keys, whatever fits: a uniform draw of all episodes so far, at any time."""

    def __init__(self) -> None:
        self.threshold = _EVERY_KEY

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want keys below all that have gone."""
        return facts.key < self.threshold

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let the largest keys go, and never want one like them again."""
        order = np.argsort(-live["key"], kind="stable")
        gone = _until(live, order, num_bytes)
        if len(gone):
            self.threshold = min(self.threshold, float(live["key"][order[len(gone) - 1]]))
        return gone

    def stale(self, live: Live, step: int) -> Array:
        """Let go what a crash kept from going."""
        gone: Array = live["id"][live["key"] >= self.threshold]
        return gone

    def state(self) -> State:
        """Return the threshold."""
        return {"threshold": self.threshold}

    def load(self, state: State) -> None:
        """Restore the threshold."""
        self.threshold = min(self.threshold, float(state["threshold"]))


class Stratified(KeepAll):
    """One reservoir per bin of policy versions, so that every stage of learning stays; bins grow as versions do."""

    def __init__(self, num_bins: int) -> None:
        self._num_bins = num_bins
        self.width = 1
        self.thresholds: dict[int, float] = {}  # of the bins that have let something go

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want what its bin's reservoir wants."""
        while facts.version_last // self.width >= self._num_bins:
            self._double()
        return facts.key < self.thresholds.get(facts.version_last // self.width, _EVERY_KEY)

    def _double(self) -> None:
        """Merge neighbours; what is kept of both is what the stricter one would have kept."""
        self.width *= 2
        merged: dict[int, float] = {}
        for number, threshold in self.thresholds.items():
            merged[number // 2] = min(threshold, merged.get(number // 2, _EVERY_KEY))
        self.thresholds = merged

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let the largest keys of whichever bin is fullest go, one after another."""
        bins = live["version_last"] // self.width
        rows_of = {int(b): np.flatnonzero(bins == b) for b in np.unique(bins)}
        smallest_first = {b: rows[np.argsort(live["key"][rows], kind="stable")].tolist() for b, rows in rows_of.items()}
        fullest = [(-int(live["bytes"][rows].sum()), b) for b, rows in rows_of.items()]
        heapq.heapify(fullest)
        gone: list[int] = []
        freed = 0
        while freed < num_bytes and fullest:
            used, number = heapq.heappop(fullest)
            row = smallest_first[number].pop()
            gone.append(int(live["id"][row]))
            freed += int(live["bytes"][row])
            self._tighten(number, float(live["key"][row]))
            if smallest_first[number]:
                heapq.heappush(fullest, (used + int(live["bytes"][row]), number))
        return np.array(gone, np.int64)

    def _tighten(self, number: int, threshold: float) -> None:
        self.thresholds[number] = min(threshold, self.thresholds.get(number, _EVERY_KEY))

    def stale(self, live: Live, step: int) -> Array:
        """Let go what a merge of bins has made too many."""
        bins = (live["version_last"] // self.width).tolist()
        limits = np.array([self.thresholds.get(number, _EVERY_KEY) for number in bins])
        gone: Array = live["id"][live["key"] >= limits]
        return gone

    def state(self) -> State:
        """Return the bins and their thresholds."""
        return {"width": self.width, "thresholds": {str(b): t for b, t in self.thresholds.items()}}

    def load(self, state: State) -> None:
        """Restore the bins and their thresholds."""
        self.width = int(state["width"])
        self.thresholds = {int(b): float(t) for b, t in state["thresholds"].items()}


class TopReturn(KeepAll):
    """Keeps the best returns; the worst of them only ever rises."""

    def __init__(self) -> None:
        self.floor = -np.inf

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want what is better than all that has gone."""
        return facts.episode_return > self.floor

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let the worst go; among equals the older."""
        order = np.lexsort((live["step"], live["episode_return"]))
        gone = _until(live, order, num_bytes)
        if len(gone):
            self.floor = max(self.floor, float(live["episode_return"][order[len(gone) - 1]]))
        return gone

    def state(self) -> State:
        """Return the floor; JSON has no infinity."""
        return {"floor": None if np.isinf(self.floor) else self.floor}

    def load(self, state: State) -> None:
        """Restore the floor."""
        self.floor = max(self.floor, -np.inf if state["floor"] is None else float(state["floor"]))


class KeepExperts(KeepAll):
    """Keeps episodes that were expert when they ended; the oldest go first, since a later policy is a better expert."""

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want experts."""
        return is_expert

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let the oldest go."""
        return _until(live, _oldest_first(live), num_bytes)


class Mixture:
    """Parts that each decide as if alone with a share of the room; what two parts keep is stored once."""

    def __init__(self, parts: Sequence[Retention], shares: Sequence[float]) -> None:
        self._parts, self._shares = list(parts), np.asarray(shares, np.float64) / sum(shares)
        self._owners: dict[int, int] = {}  # episode id -> bits of the parts that keep it
        self._wanted_by = 0

    def wants(self, facts: Facts, is_expert: bool) -> bool:
        """Want what any part wants."""
        votes = [part.wants(facts, is_expert) for part in self._parts]
        self._wanted_by = sum(1 << i for i, vote in enumerate(votes) if vote)
        return any(votes)

    def added(self, number: int) -> None:
        """Note who wanted it."""
        self._owners[number] = self._wanted_by

    def victims(self, live: Live, num_bytes: int) -> Array:
        """Let parts that use more than their share let go, until enough belongs to nobody."""
        owners = self._owners_of(live)
        wanted_left = int(live["bytes"].sum()) - num_bytes
        while (excess := int(live["bytes"][owners != 0].sum()) - wanted_left) > 0 and (owners != 0).any():
            used = np.array([live["bytes"][owners >> i & 1 != 0].sum() for i in range(len(self._parts))], np.float64)
            over = np.maximum(used - self._shares * max(wanted_left, 0), 0)
            for i in np.flatnonzero(over):
                mine = np.flatnonzero(owners >> i & 1)
                less = int(np.ceil(excess * over[i] / over.sum()))
                gone = self._parts[i].victims({name: column[mine] for name, column in live.items()}, less)
                owners[np.isin(live["id"], gone)] &= ~(1 << i)
        return self._disown(live, owners)

    def stale(self, live: Live, step: int) -> Array:
        """Let go what has no place in any part any more."""
        owners = self._owners_of(live)
        for i, part in enumerate(self._parts):
            mine = np.flatnonzero(owners >> i & 1)
            gone = part.stale({name: column[mine] for name, column in live.items()}, step)
            owners[np.isin(live["id"], gone)] &= ~(1 << i)
        return self._disown(live, owners)

    def _owners_of(self, live: Live) -> Array:
        """Return the bits of each episode; one whose owners a crash has lost is given to the last part."""
        lost = 1 << (len(self._parts) - 1)
        return np.array([self._owners.get(number, lost) for number in live["id"].tolist()], np.int64)

    def _disown(self, live: Live, owners: Array) -> Array:
        self._owners = {n: o for n, o in zip(live["id"].tolist(), owners.tolist(), strict=True) if o}
        gone: Array = live["id"][owners == 0]
        return gone

    def state(self) -> State:
        """Return the parts and who keeps what."""
        owners = {str(number): bits for number, bits in self._owners.items()}
        return {"parts": [part.state() for part in self._parts], "owners": owners}

    def load(self, state: State) -> None:
        """Restore the parts and who keeps what."""
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load(saved)
        self._owners = {int(number): bits for number, bits in state["owners"].items()}


def retention_of(cfg: RecordConfig) -> Retention:
    """Return the retention that a config asks for."""
    if cfg.keep == "mixture":
        return Mixture([_plain(part.keep, cfg) for part in cfg.mixture], [part.percent for part in cfg.mixture])
    return _plain(cfg.keep, cfg)


def _plain(keep: str, cfg: RecordConfig) -> Retention:
    kinds: dict[str, Retention] = {
        "all": KeepAll(),
        "last": KeepLast(cfg.percent),
        "reservoir": Reservoir(),
        "stratified": Stratified(cfg.bins),
        "top_return": TopReturn(),
        "expert": KeepExperts(),
    }
    return kinds[keep]


def _oldest_first(live: Live) -> Array:
    order: Array = np.argsort(live["step"], kind="stable")
    return order


def _until(live: Live, order: Array, num_bytes: int) -> Array:
    """Return the ids of rows in an order until their bytes are enough."""
    freed = np.cumsum(live["bytes"][order])
    ids: Array = live["id"][order[: int(np.searchsorted(freed, num_bytes)) + 1]]
    return ids
