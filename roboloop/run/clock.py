"""The counters of a run, kept apart because users mean different ones by 'step'."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from roboloop.core.types import Rollout, State


@dataclass
class Clock:
    """Steps are decisions of the agent; frames are simulator steps (decisions times action repeat)."""

    action_repeat: int
    step: int = 0
    frames: int = 0
    updates: int = 0
    episodes: int = 0

    def advance(self, rollout: Rollout) -> None:
        """Count a rollout."""
        self.step += rollout.num_steps
        self.frames += rollout.num_steps * self.action_repeat
        self.episodes += sum(end.length > 0 for end in rollout.episodes)

    def counters(self) -> dict[str, float]:
        """Return the counters as metrics."""
        return {"step": self.step, "frames": self.frames, "updates": self.updates, "episodes": self.episodes}

    def state(self) -> State:
        """Return the counters."""
        return asdict(self)

    def load(self, state: State) -> None:
        """Restore the counters."""
        for name in self.state():
            setattr(self, name, int(state[name]))


class Stopwatch:
    """Where wall time went, summed over resumes: the machine's story, kept out of metrics.jsonl."""

    def __init__(self) -> None:
        self.seconds = {"collect_s": 0.0, "update_s": 0.0, "eval_s": 0.0, "checkpoint_s": 0.0, "log_s": 0.0}
        self._mark = time.monotonic()
        self._last = (0.0, 0, 0)

    def lap(self, section: str) -> None:
        """Book the time since the last lap to a section."""
        now = time.monotonic()
        self.seconds[section] += now - self._mark
        self._mark = now

    @property
    def wall_s(self) -> float:
        """All seconds so far."""
        return sum(self.seconds.values())

    @property
    def train_s(self) -> float:
        """Seconds of collecting and learning so far; evaluation, checkpoints and logs are not counted."""
        return self.seconds["collect_s"] + self.seconds["update_s"]

    def speeds(self, clock: Clock) -> dict[str, float]:
        """Return steps and updates per second of training since this was last asked."""
        then, self._last = self._last, (self.train_s, clock.step, clock.updates)
        seconds = max(self.train_s - then[0], 1e-9)
        return {"steps_per_s": (clock.step - then[1]) / seconds, "updates_per_s": (clock.updates - then[2]) / seconds}

    def resume(self, seconds: dict[str, float], clock: Clock) -> None:
        """Go on counting from an earlier process's seconds."""
        self.seconds.update(seconds)
        self._mark = time.monotonic()
        self._last = (self.train_s, clock.step, clock.updates)
