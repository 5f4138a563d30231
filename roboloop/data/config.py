"""Settings of the store and of the dataset recorder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError

Keep: TypeAlias = Literal["none", "all", "last", "reservoir", "stratified", "top_return", "expert", "mixture"]
KeepOfPart: TypeAlias = Literal["last", "reservoir", "stratified", "top_return", "expert"]


@dataclass(frozen=True)
class ReplayConfig:
    """How much experience training may look back on, and how it is kept."""

    capacity: int = 1_000_000
    """Rows over all environments; an episode takes one row more than it has steps."""
    segment_mb: int = 64
    """Size at which a journal file is sealed and the next one begun."""

    def check(self, num_envs: int, batch_size: int) -> None:
        """Refuse a ring too small to sample from."""
        if self.capacity < max(2 * batch_size, 16 * num_envs):
            raise ConfigError(f"replay.capacity {self.capacity} is too small for batches of {batch_size}")
        if self.segment_mb < 1:
            raise ConfigError(f"replay.segment_mb must be at least 1, not {self.segment_mb}")


@dataclass(frozen=True)
class ExpertConfig:
    """What experts did, for algorithms that imitate: one dataset per task, made by roboloop record."""

    directory: str = ""
    """Where each task has a dataset under its name; for a single task it may be the dataset itself."""
    episodes: int = 0
    """Episodes of each task that are used, the first ones; 0 = all."""
    every: int = 1
    """Use every N-th transition of an episode, and its last one."""
    held_out: float = 0.1
    """Share of the episodes that nothing is learned from, to judge by; 0 = none."""
    end_share: float = 0.95
    """Share of the last transitions of episodes in what a discriminator sees of an expert."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible."""
        if not self.directory:
            raise ConfigError("config key 'algo.expert.directory' is needed: roboloop record ENV --expert makes one")
        if self.every < 1 or self.episodes < 0:
            raise ConfigError("config key 'algo.expert.every' must be at least 1, 'episodes' not negative")
        if not 0 <= self.held_out < 1 or not 0 <= self.end_share <= 1:
            raise ConfigError("config keys 'algo.expert.held_out' and 'end_share' are shares between 0 and 1")


@dataclass(frozen=True)
class PartConfig:
    """One part of a mixture: kept as if it were alone with its share of the budget."""

    keep: KeepOfPart = "reservoir"
    percent: float = 50.0
    """Share of the budget."""


@dataclass(frozen=True)
class RecordConfig:
    """A dataset of whole episodes, written beside training into the run's ``dataset`` directory."""

    keep: Keep = "none"
    """What stays when the budget is full: all (recording ends then), last (oldest go first), reservoir (even over the
    run), stratified (even over policy versions), top_return, expert, or a mixture; none = no recorder."""
    budget_mb: int = field(default=1000, metadata=RESOURCE)
    """Most that the dataset may ever take on disk; 0 = no limit."""
    min_free_mb: int = field(default=1000, metadata=RESOURCE)
    """Recording ends before the disk has less than this left."""
    select: Literal["streams", "one_per_iteration"] = "streams"
    """'streams' = the environments of ``streams`` side by side; 'one_per_iteration' = one at a time, in turns."""
    streams: int = 0
    """Environments to record, spread evenly; 0 = all."""
    every: int = 1
    """Record every N-th episode of an environment."""
    percent: float = 100.0
    """With keep 'last': the last so many percent of all steps, whenever the run ends."""
    bins: int = 16
    """With keep 'stratified': most bins of policy versions."""
    expert_by: Literal["quantile", "return", "best_eval"] = "quantile"
    """What makes an episode expert: its return among the last episodes, its return as such, or beside the best
    evaluation so far."""
    expert_at: float = 0.9
    """The quantile, the return, or the share of the best evaluation's return that must be reached."""
    expert_window: int = 100
    """Episodes that the quantile looks back on; before there are so many, none is expert."""
    mixture: tuple[PartConfig, ...] = ()
    """With keep 'mixture': its parts, such as [{keep: expert, percent: 50}, {keep: reservoir, percent: 50}]."""
    ring_mb: int = field(default=0, metadata=RESOURCE)
    """Shared memory between training and the writer; when it is full, whole episodes are dropped and counted. 0 = room
    for some rollouts, at least 64."""
    commit_s: float = field(default=5.0, metadata=RESOURCE)
    """A crash loses at most what came in since the last commit."""
    restarts: int = field(default=3, metadata=RESOURCE)
    """A writer that dies is replaced so often; then recording ends and training goes on."""

    @property
    def knows_experts(self) -> bool:
        """Whether it matters which episodes are expert."""
        return self.keep == "expert" or any(part.keep == "expert" for part in self.mixture)

    @property
    def budget_bytes(self) -> int:
        """The budget; 0 = no limit."""
        return self.budget_mb * 1_000_000

    def num_streams(self, num_envs: int) -> int:
        """Return how many environments are recorded at the same time."""
        return 1 if self.select == "one_per_iteration" else self.streams or num_envs

    def selected(self, num_envs: int) -> float:
        """Return the fraction of all steps that is offered for recording."""
        return self.num_streams(num_envs) / num_envs / self.every

    def check(self, num_envs: int) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        for name in ("every", "bins", "expert_window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"config key 'record.{name}' must be at least 1, not {getattr(self, name)}")
        for name in ("budget_mb", "min_free_mb", "streams", "restarts", "ring_mb"):
            if getattr(self, name) < 0:
                raise ConfigError(f"config key 'record.{name}' must not be negative: {getattr(self, name)}")
        if self.streams > num_envs:
            raise ConfigError(f"record.streams {self.streams} is more than env.num_envs {num_envs}")
        if self.commit_s <= 0:
            raise ConfigError(f"config key 'record.commit_s' must be above 0, not {self.commit_s}")
        if not 0 < self.percent <= 100:
            raise ConfigError(f"config key 'record.percent' must be above 0 and at most 100, not {self.percent}")
        if self.percent != 100 and self.keep != "last":
            raise ConfigError("config key 'record.percent' is for record.keep 'last'")
        if self.expert_by == "quantile" and not 0 <= self.expert_at <= 1:
            raise ConfigError(f"record.expert_at is a quantile between 0 and 1, not {self.expert_at}")
        if self.select == "one_per_iteration" and self.every != 1:
            raise ConfigError("record.select 'one_per_iteration' takes its turns itself: leave record.every at 1")
        self._check_mixture()

    def _check_mixture(self) -> None:
        if (self.keep == "mixture") != bool(self.mixture):
            raise ConfigError("record.keep 'mixture' and the list record.mixture need each other")
        if self.mixture and abs(sum(part.percent for part in self.mixture) - 100) > 1e-6:
            raise ConfigError(f"the parts of record.mixture add up to {sum(p.percent for p in self.mixture):g} %")
        if any(part.percent <= 0 for part in self.mixture):
            raise ConfigError("every part of record.mixture needs a percent above 0")
