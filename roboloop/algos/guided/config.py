"""Settings of what learns from experts (DAC, LfGP) and from examples of success (VPACE, SQIL, RCE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from roboloop.algos.gail.discriminator_config import DiscriminatorConfig
from roboloop.algos.guided.schedulers import ScheduleConfig, WeightedSchedule, check_schedule
from roboloop.algos.limits import not_negative, within_one
from roboloop.algos.mtsac.config import MTSACConfig
from roboloop.algos.sac.config import SACConfig, SACSettings
from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError
from roboloop.core.tasks import task_index
from roboloop.data.config import ExpertConfig


@dataclass(frozen=True)
class GuidedSettings:
    """Soft actor-critic where somebody else than the environment says what is good."""

    name: str = ""
    sac: SACSettings = field(default_factory=SACConfig)
    """What learns; each task learns from every transition of a batch."""
    expert: ExpertConfig = field(default_factory=ExpertConfig)
    """What is to be imitated."""

    @property
    def batch_size(self) -> int:
        """Transitions per update and task."""
        return self.sac.batch_size

    @property
    def processes(self) -> int:
        """Processes that compute shards."""
        return self.sac.processes

    @property
    def imitates(self) -> bool:
        """Whether there are demonstrations."""
        return True

    @property
    def looks_back(self) -> bool:
        """Whether whole episodes are looked back on when they end."""
        return False

    def tasks_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return which of an environment's tasks are learned: the main one."""
        return (names[0],)

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        self.sac.check()
        if self.sac.n_step != 1:
            raise ConfigError(
                f"{self.name} pays single steps when they are drawn: leave algo.sac.n_step at 1, not {self.sac.n_step}"
            )
        if not 0 < self.sac.gamma < 1:
            raise ConfigError(
                f"{self.name} needs algo.sac.gamma between 0 and 1, not {self.sac.gamma}: ends are paid for ever"
            )


@dataclass(frozen=True)
class AdversarialSettings(GuidedSettings):
    """Rewards are a discriminator's opinion of how much a step is the expert's."""

    discriminator: DiscriminatorConfig = field(default_factory=DiscriminatorConfig)
    """What pays."""
    expert_fraction: float = 0.1
    """Share of experts' transitions in the batches that actor and critics learn from, at the start."""
    expert_decay: float = 0.99999
    """Factor of that share per update."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        if self.imitates:
            self.expert.check()
        self.discriminator.check()
        within_one(self, "expert_fraction", "expert_decay")


@dataclass(frozen=True)
class DACConfig(AdversarialSettings):
    """Soft actor-critic on a discriminator's rewards (arXiv:1809.02925); the environment's own are not looked at."""

    name: Literal["dac"] = "dac"
    """Which algorithm this section configures."""
    sac: SACConfig = field(default_factory=SACConfig)
    """What learns from the rewards."""


@dataclass(frozen=True)
class IntentionSettings(GuidedSettings):
    """Several tasks of one environment are learned at once, and a scheduler says whose policy acts."""

    sac: MTSACConfig = field(default_factory=MTSACConfig)
    """What learns; of ``batch_size`` transitions, each task learns from all."""
    tasks: tuple[str, ...] = ()
    """Which of the environment's tasks are learned, the main one among them; empty = all."""
    schedule: ScheduleConfig = field(default_factory=WeightedSchedule)
    """Which of them acts when."""

    @property
    def looks_back(self) -> bool:
        """Whether whole episodes are looked back on when they end."""
        return self.schedule.name == "learned"

    def tasks_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return which of an environment's tasks are learned, the main one first."""
        wanted = {task_index(task, names, "algo.tasks") for task in self.tasks} or range(len(names))
        if 0 not in wanted:
            raise ConfigError(f"algo.tasks: the main task, {names[0]!r}, must be among {', '.join(self.tasks)}")
        return tuple(names[i] for i in sorted(wanted))

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        check_schedule(self.schedule)


@dataclass(frozen=True)
class LfGPConfig(IntentionSettings, AdversarialSettings):
    """Learning from guided play (arXiv:2301.00051): a policy and a discriminator for each task, one transition for all.

    With ``rewards: env`` it is scheduled auxiliary control (SAC-X, arXiv:1802.10567).
    """

    name: Literal["lfgp"] = "lfgp"
    """Which algorithm this section configures."""
    rewards: Literal["discriminator", "env"] = "discriminator"
    """Who pays: a discriminator for each task, or the environment's own formula of it; then there is no expert."""

    @property
    def imitates(self) -> bool:
        """Whether there is an expert."""
        return self.rewards == "discriminator"

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        if not self.imitates and self.expert.directory:
            raise ConfigError("algo.rewards 'env' has no expert: leave algo.expert.directory out")


def _example_sac(**changes: float) -> MTSACConfig:
    """Return the reference's settings: values between -10 and 10, and little entropy."""
    return MTSACConfig(**{"reward_scale": 0.1, "initial_alpha": 0.01, "tau": 1e-3, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class ExampleSettings(IntentionSettings):
    """States in which a task is done are all that is known of it: how experts got there is not looked at."""

    loss: ClassVar[Literal["bellman", "classifier"]] = "bellman"
    sac: MTSACConfig = field(default_factory=_example_sac)
    """What learns; an example is paid ``reward_scale`` for ever, all else minus that."""
    example_fraction: float = 0.5
    """Share of examples among the rows that a task's critics learn from."""
    example_noise: float = 0.1
    """Deviation of the noise on examples, in deviations of each of their numbers."""
    penalty: float = 0.0
    """Penalty on Q-values above those of the examples, or below the value of never succeeding."""
    penalty_window: int = 50
    """Updates over whose median the examples' own value is known."""

    @property
    def num_examples(self) -> int:
        """Of each task in a batch."""
        return round(self.example_fraction * self.batch_size)

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        self.expert.check()
        not_negative(self, "example_noise", "penalty")
        if self.penalty_window < 1:
            raise ConfigError(f"penalty_window must be at least 1, not {self.penalty_window}")
        if not 0 < self.num_examples < self.batch_size or self.num_examples % self.sac.shards:
            parts = f"{self.num_examples} of {self.batch_size} rows"
            raise ConfigError(
                f"example_fraction {self.example_fraction} makes {parts}: some of both, and a multiple of "
                f"{self.sac.shards} shards"
            )
        if self.sac.reward_scale <= 0 or self.sac.normalize_reward:
            raise ConfigError("algo.sac.reward_scale is what examples are paid: above 0, without normalize_reward")
        if self.schedule.name == "learned":
            raise ConfigError(f"schedule 'learned' needs rewards, and {self.name} has none: it is for lfgp")


@dataclass(frozen=True)
class VPACEConfig(ExampleSettings):
    """Value-penalised auxiliary control from examples (arXiv:2407.03311)."""

    name: Literal["vpace"] = "vpace"
    """Which algorithm this section configures."""
    penalty: float = 10.0
    """Penalty on Q-values above those of the examples, or below the value of never succeeding."""


@dataclass(frozen=True)
class SQILConfig(ExampleSettings):
    """Soft Q imitation (arXiv:1905.11108) of examples: reward for them, none for what the policy does."""

    name: Literal["sqil"] = "sqil"
    """Which algorithm this section configures."""


@dataclass(frozen=True)
class RCEConfig(ExampleSettings):
    """Recursive classification of examples (arXiv:2103.12656): critics say how likely success is to come."""

    loss: ClassVar[Literal["bellman", "classifier"]] = "classifier"
    name: Literal["rce"] = "rce"
    """Which algorithm this section configures."""
    sac: MTSACConfig = field(default_factory=lambda: _example_sac(alpha=1e-4, tau=5e-3))
    """What learns; rewards do not count, and neither does entropy in what critics learn."""

    def check(self) -> None:
        """Raise ConfigError where values are impossible or contradict each other."""
        super().check()
        if self.penalty:
            raise ConfigError("penalty is for values, and rce learns probabilities: leave it at 0")


def _check_schedule(experiment: Any) -> None:
    """Refuse samplers that tell of episodes too late for a learned schedule."""
    sample = experiment.sample
    if experiment.algo.looks_back and (sample.workers or sample.real_time != "off" or sample.steps != 1):
        raise ConfigError("schedule 'learned' is told of each episode as it ends: leave sample.workers, steps and "
                          "real_time alone")  # fmt: skip


def _guided(name: str, config: type[GuidedSettings], load_policy: str) -> AlgorithmSpec:
    return AlgorithmSpec(
        name, config, "replay", "roboloop.algos.guided.setup:make", load_policy, frame_stack=False, task_sets=False,
        check=_check_schedule,
    )  # fmt: skip


_INTENTIONS = "roboloop.algos.guided.setup:load_intentions"
DAC = _guided("dac", DACConfig, "roboloop.algos.guided.setup:load_dac")
LFGP = _guided("lfgp", LfGPConfig, _INTENTIONS)
VPACE = _guided("vpace", VPACEConfig, _INTENTIONS)
SQIL = _guided("sqil", SQILConfig, _INTENTIONS)
RCE = _guided("rce", RCEConfig, _INTENTIONS)
