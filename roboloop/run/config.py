"""The whole experiment as one frozen record; a YAML or JSON file has the same keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from roboloop.algos import registry as algorithms
from roboloop.algos.sac.config import SACConfig
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.config import BY_NAME, INFINITE, KINDS, NAMED_BY, RESOURCE, by_key, resource_keys
from roboloop.core.errors import ConfigError
from roboloop.core.types import AlgorithmConfig
from roboloop.data.config import RecordConfig, ReplayConfig
from roboloop.envs import registry
from roboloop.envs.config import EnvConfig
from roboloop.envs.metaworld.suite import MetaWorldEnvConfig
from roboloop.sample.config import SampleConfig
from roboloop.track.trackers.config import TrackioConfig, WandbConfig

MOST_UPDATES, MOST_EPISODES = 10_000, 10**6
"""Per environment step, and per evaluation: more looks like a hang."""


@dataclass(frozen=True)
class UpdateConfig:
    """When and how often to learn."""

    per_step: float = field(default=1.0, metadata=INFINITE)
    """Gradient updates per environment step; fractions are carried over."""
    every_steps: int = 1
    """Run the accumulated updates every N environment steps (old name: one epoch)."""
    at: Literal["steps", "episode", "slack"] = "steps"
    """'steps' = every ``every_steps``; 'episode' = between episodes, for robots that must not wait; 'slack' = while
    there is time before a robot's next action, and what is still owed between episodes (``per_step: .inf`` fills all
    slack and owes nothing)."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training, in environments of its own, on goals that training never sees."""

    every_steps: int = 10_000
    """Steps between evaluations; 0 = only at the end."""
    episodes: int = 10
    """Episodes per evaluation; 0 = none while training, as on a robot: roboloop eval RUN --checkpoint all."""
    seed: int = 0
    """Fixes the evaluation goals; the same for all runs, so that they are compared on equal terms."""
    stop_success: float | None = field(default=None, metadata=RESOURCE)
    """End training once evaluations reach this success rate."""
    stop_evaluations: int = field(default=2, metadata=RESOURCE)
    """So many evaluations in a row must reach it: one alone may be luck."""
    background: bool = False
    """Evaluate in a process of its own while training goes on; the result is written at the next evaluation."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep; any of the three clocks may ask."""

    every_steps: int = 10_000
    """Steps between checkpoints; 0 = never by steps."""
    every_s: float = 300.0
    """Seconds between checkpoints; 0 = never by time."""
    every_episode: bool = False
    """After every episode, as on a robot."""
    keep_last: int = 3
    """Newest checkpoints to keep."""
    milestone_steps: int = 0
    """Keep a checkpoint every N steps for good; 0 = none."""


@dataclass(frozen=True)
class Experiment:
    """Everything that defines a run; equal experiments give equal bits."""

    experiment: str = "default"
    """First part of runs/<experiment>/<task>/<seed>."""
    seed: int = 0
    """Seeds everything: environments, networks, exploration, replay."""
    steps: int = field(default=100_000, metadata=RESOURCE)
    """Environment steps to train for, over all environments; gradient steps where a dataset is learned from."""
    warmup_steps: int = 1_000
    """Steps with uniformly random actions before learning begins."""
    log_every_steps: int = 1_000
    """Steps between rows of metrics.jsonl."""
    device: str = "cpu"
    """Where networks live; 'cuda' is accepted but has not been run by us."""
    runs_dir: str = "runs"
    """Where run directories are made."""
    observers: tuple[str, ...] = field(default=(), metadata=RESOURCE)
    """Hooks, as module:Class with on_training_step, on_episode or on_checkpoint; they run beside training."""
    observer_budget_s: float = field(default=1.0, metadata=RESOURCE)
    """An observer that takes longer than this for one event is named in a warning."""
    trackers: tuple[str, ...] = field(default=("tensorboard",), metadata=RESOURCE)
    """Where metrics.jsonl is mirrored: tensorboard, wandb, trackio, a plug-in's name or module:Class; may be empty."""
    start: str = ""
    """A run whose last weights training begins with, where observations and actions are the same: the next tier of a
    curriculum, or going on in another environment. Data, counters and schedules begin anew."""
    dataset: str = ""
    """What dt and bc learn from: a dataset, or a run that recorded one; the environment is then that of the data."""
    target: float | None = None
    """Return that a Decision Transformer is asked for; none = the best one in the data."""
    top_percent: float = 100.0
    """Learn only from the episodes of highest return that hold this share of the dataset's steps."""
    window_every: int = 1
    """Learn only from every N-th step of an episode; the first one is drawn, as with experts."""
    window_cache_mb: int = 2_000
    """Decoded observations of a dataset that are kept in memory."""
    env: EnvConfig = field(
        default_factory=MetaWorldEnvConfig,
        metadata={BY_NAME: registry.default_config, NAMED_BY: "id", KINDS: registry.default_configs},
    )
    sample: SampleConfig = field(default_factory=SampleConfig)
    algo: AlgorithmConfig = field(
        default_factory=SACConfig, metadata={BY_NAME: algorithms.default_config, KINDS: algorithms.default_configs}
    )
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig, metadata=RESOURCE)
    record: RecordConfig = field(default_factory=RecordConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig, metadata=RESOURCE)
    trackio: TrackioConfig = field(default_factory=TrackioConfig, metadata=RESOURCE)

    def __post_init__(self) -> None:
        """Let a plain EnvConfig stand for the defaults of its suite."""
        object.__setattr__(self, "env", registry.complete(self.env))

    def check(self) -> None:
        """Refuse impossible values before anything is created."""
        positive = {
            "steps": self.steps,
            "log_every_steps": self.log_every_steps,
            "update.every_steps": self.update.every_steps,
            "eval.stop_evaluations": self.eval.stop_evaluations,
            "checkpoint.keep_last": self.checkpoint.keep_last,
        }
        for name, value in positive.items():
            if value < 1:
                raise ConfigError(f"config key '{name}' must be at least 1, not {value}")
        not_negative = {"seed": self.seed, "warmup_steps": self.warmup_steps, "eval.episodes": self.eval.episodes,
                        "eval.seed": self.eval.seed}  # fmt: skip
        for name, number in not_negative.items():
            if number < 0:
                raise ConfigError(f"config key '{name}' must not be negative: {number}")
        if self.update.per_step < 0:
            raise ConfigError(f"config key 'update.per_step' must not be negative: {self.update.per_step}")
        if not self.experiment or any(part in ("", ".", "..") for part in self.experiment.split("/")):
            raise ConfigError(f"config key 'experiment' must be a plain name, not {self.experiment!r}")
        self.env.check()
        self.sample.check(self.env.num_envs)
        self.record.check(self.env.num_envs)
        self.algo.check()
        self._check_most()
        self._check_vector()
        self._check_tasks()
        self._check_evaluation()
        self._check_offline()
        self._check_real_time()
        self._check_algorithm()

    @property
    def algorithm(self) -> AlgorithmSpec:
        """The record of the algorithm that the config names."""
        return algorithms.find(self.algo.name)

    @property
    def has_replay(self) -> bool:
        """Whether experience is kept and learned from many times."""
        return self.algorithm.learns_from == "replay"

    @property
    def rollout(self) -> Any:
        """Where ``rollout_steps`` and ``batch_envs`` are; None where a replay or a dataset is learned from."""
        return self.algorithm.rollout(self.algo) if self.algorithm.learns_from == "rollouts" else None

    @property
    def batch_envs(self) -> int:
        """Environments whose rollouts make one update of an algorithm that learns from rollouts."""
        return getattr(self.rollout, "batch_envs", None) or self.env.num_envs

    @property
    def is_offline(self) -> bool:
        """Whether a dataset is learned from, and nothing is collected."""
        return self.algorithm.learns_from == "dataset"

    def _check_tasks(self) -> None:
        if not self.is_offline:  # the environment is then only evaluated in
            registry.check_columns(self.env)
        if registry.task_set(self.env.id) and not self.algorithm.task_sets:
            raise ConfigError(f"{self.algo.name} learns in one environment: {self.env.id} is a set; take --algo mtsac")

    def _check_vector(self) -> None:
        """Refuse what one simulator for all environments of a group cannot do."""
        if registry.vector_maker(self.env) is None:
            return
        one = f"{self.env.id} steps all environments of a group by one call"
        if self.sample.inference == "central":
            raise ConfigError(f"{one}: leave sample.inference at workers")
        if self.sample.real_time != "off":
            raise ConfigError(f"{one}, which is no robot: leave sample.real_time off")
        if registry.task_set(self.env.id):
            raise ConfigError(f"{one}: it cannot be a set of tasks")
        if code := [key for key in ("reward", "tasks", "expert") if getattr(self.env, key)]:
            raise ConfigError(f"{one}: env.{code[0]} is for environments that are stepped one by one")
        if self.env.action_repeat != 1:
            raise ConfigError(f"{one}, which may begin another episode: leave env.action_repeat at 1")

    def _check_algorithm(self) -> None:
        if self.has_replay:
            self.replay.check(self.env.num_envs, getattr(self.algo, "batch_size", 1))
        if self.env.frame_stack != 1 and not self.algorithm.frame_stack:
            raise ConfigError(f"{self.algo.name} takes single observations: leave env.frame_stack at 1")
        if self.rollout is not None:
            self._check_rollouts()
        self.algorithm.check(self)

    def _check_most(self) -> None:
        most: dict[str, tuple[float, int]] = {
            "update.per_step": (self.update.per_step, MOST_UPDATES),
            "eval.episodes": (self.eval.episodes, MOST_EPISODES),
        }
        for name, (value, limit) in most.items():
            if limit < value < math.inf:
                raise ConfigError(f"config key '{name}' must be at most {limit}, not {value:g}")

    def _check_evaluation(self) -> None:
        if self.eval.episodes and self.env.robot_address and not self.is_offline:
            where = self.env.robot_address
            raise ConfigError(f"at {where} is one robot, to train or to evaluate with: set eval.episodes to 0")
        if not self.eval.episodes and self.eval.stop_success is not None:
            raise ConfigError("eval.stop_success needs evaluations: eval.episodes is 0")
        if not self.eval.episodes and self.record.keep != "none" and self.record.expert_by == "best_eval":
            raise ConfigError("record.expert_by 'best_eval' needs evaluations: eval.episodes is 0")

    def _check_offline(self) -> None:
        if self.is_offline and not self.dataset:
            raise ConfigError(f"algo {self.algo.name!r} learns from a dataset: give --dataset DIR")
        if not self.is_offline and self.dataset:
            raise ConfigError(f"algo {self.algo.name!r} learns from an environment: --dataset is for dt and bc")
        if not self.is_offline:
            return
        if self.record.keep != "none":
            raise ConfigError("record.keep is for training in an environment, not on a dataset")
        if not 0 < self.top_percent <= 100:
            raise ConfigError(f"config key 'top_percent' must be above 0 and at most 100, not {self.top_percent}")
        if self.window_every < 1:
            raise ConfigError(f"config key 'window_every' must be at least 1, not {self.window_every}")
        if self.window_cache_mb < 1:
            raise ConfigError(f"config key 'window_cache_mb' must be at least 1, not {self.window_cache_mb}")

    def _check_real_time(self) -> None:
        mode, at, on_wall_clock = self.sample.real_time, self.update.at, self.env.on_wall_clock
        if mode != "off" and not self.has_replay:
            raise ConfigError(f"sample.real_time is for algorithms that learn from a replay, not for {self.algo.name}")
        if at == "slack" and mode != "inline":
            raise ConfigError("update.at 'slack' needs sample.real_time 'inline': there is no slack elsewhere")
        if math.isinf(self.update.per_step) and (at != "slack" or not on_wall_clock):
            raise ConfigError("update.per_step .inf is for update.at 'slack' on the wall clock")
        if mode == "inline" and at == "steps" and on_wall_clock:
            raise ConfigError("sample.real_time 'inline' learns at 'slack' or 'episode': set update.at")
        if on_wall_clock and mode == "off" and not self.is_offline:
            raise ConfigError(f"{self.env.id} is driven on the wall clock and does not wait: set sample.real_time")

    def _check_rollouts(self) -> None:
        if self.sample.steps != 1:
            raise ConfigError("config key 'sample.steps' is for off-policy algorithms: others have algo.rollout_steps")
        columns, *others = self.sample.rollout_envs(self.env.num_envs)
        if others:
            raise ConfigError(
                f"with sample.free_running, {self.algo.name} needs groups of equal size: env.num_envs "
                f"{self.env.num_envs} is no multiple of sample.groups {self.sample.groups}"
            )
        if self.batch_envs % columns:
            raise ConfigError(
                f"algo.batch_envs {self.batch_envs} is not a multiple of the {columns} envs that a rollout has"
            )


def renewed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run of an earlier version with its keys as they are now."""
    switches = {name: data[name] for name in ("tensorboard", "wandb") if isinstance(data.get(name), bool)}
    kept = {key: value for key, value in data.items() if key not in switches}
    if switches:
        kept["trackers"] = [name for name, is_on in switches.items() if is_on]
    if isinstance(env := kept.get("env"), dict):
        kept["env"] = registry.as_written_now(env)
    return kept


def identity(config: Experiment) -> dict[str, Any]:
    """Return by key all that a run is from its first step to its last, as JSON values."""
    # JSON has no infinity
    plain = {
        key: str(value) if isinstance(value, float) and math.isinf(value) else value
        for key, value in by_key(config).items()
    }
    may_change = resource_keys(config)
    return {key: value for key, value in plain.items() if key not in may_change}
