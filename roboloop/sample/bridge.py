"""The memory between a robot's pilot and its learner: a ring of steps one way, weights and a few words the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roboloop.core.memory import ByteLayout, SharedMemory
from roboloop.core.types import EpisodeEnd
from roboloop.data.rollouts import COLUMNS
from roboloop.sample.board import WORDS_PER_LINE, SharedBoard
from roboloop.sample.buffers import RolloutShape
from roboloop.sample.pilot import PilotStep

BEAT_NS, GRANTED, POLICY, RESTING = range(4)
"""What the learner says: when it was last alive, how many episodes may begin, who acts, and whether to stand still."""
STANDS, MOVED_NS, WANTS = range(3)
"""What the pilot says: whether it leaves the robot alone, when it last did anything, how many episodes it has ready."""

_FACTS = ("episode", "length", "episode_return", "shaped_return", "success")
_ABOUT = np.dtype(
    [
        ("episode", np.int64), ("length", np.int64), ("episode_return", np.float64), ("shaped_return", np.float64),
        ("success", np.float64), ("is_first", np.bool_), ("has_ended", np.bool_),
    ]
)  # fmt: skip


class Shared(NamedTuple):
    """The memory of a bridge, as another process finds it."""

    board: SharedMemory
    words: SharedMemory


class Bridge:
    """One side puts steps, the other takes them; neither waits for the other in here."""

    def __init__(
        self, shape: RolloutShape, slots: int, weight_sizes: Sequence[int], shared: Shared | None = None
    ) -> None:
        self._slots = slots
        line = ((WORDS_PER_LINE,), np.dtype(np.int64))
        layout = ByteLayout({"put": line, "taken": line, "learner": line, "pilot": line, "about": ((slots,), _ABOUT)})
        self.board = SharedBoard(shape, slots, weight_sizes, 0, shared.board if shared else None)
        self.shared = shared or Shared(self.board.memory, SharedMemory.create(layout.num_bytes))
        views = layout.views(self.shared.words)
        self._put, self._taken, self._about = views["put"], views["taken"], views["about"]
        self.learner = views["learner"]
        """Words that only the learner writes."""
        self.pilot = views["pilot"]
        """Words that only the pilot writes."""

    @property
    def waiting(self) -> int:
        """Steps that were put and not yet taken."""
        return int(self._put[0]) - int(self._taken[0])

    def put(self, step: PilotStep) -> bool:
        """Hand a step over; False when there is no room for it."""
        if self.waiting == self._slots:
            return False
        slot = int(self._put[0]) % self._slots
        into = self.board.whole(slot)
        for name in COLUMNS:
            getattr(into, name)[:] = getattr(step.rollout, name)
        about = self._about[slot]
        about["episode"], about["is_first"] = step.episode, step.is_first
        about["has_ended"] = bool(step.rollout.episodes)
        for end in step.rollout.episodes:
            for name in _FACTS:
                about[name] = getattr(end, name)
        self._put[0] += 1  # after all else: x86 keeps the order of stores
        return True

    def take(self) -> PilotStep | None:
        """Return the oldest step as copies, or None."""
        if not self.waiting:
            return None
        slot = int(self._taken[0]) % self._slots
        source, about = self.board.whole(slot), self._about[slot]
        rollout = source._replace(**{name: getattr(source, name).copy() for name in COLUMNS}, episodes=[])
        if about["has_ended"]:
            facts = {name: about[name].item() for name in _FACTS}
            rollout.episodes.append(EpisodeEnd(env=0, t=0, last_obs=rollout.obs[1, 0].copy(), **facts))
        step = PilotStep(rollout, int(about["episode"]), bool(about["is_first"]))
        self._taken[0] += 1
        return step
