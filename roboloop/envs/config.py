"""What a user can ask of an environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from roboloop.core.errors import ConfigError, nearest
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.panda.config import PandaConfig
from roboloop.envs.soft.config import SoftConfig

REWARD_VERSIONS = ("v1", "v2")
GOAL_MODES = ("random", "fixed")
VIEWS = ("state", "pixels")


MOST = {
    "num_envs": 10**6, "frame_stack": 1_000, "action_repeat": 10_000, "max_episode_steps": 10**7,
    "eval_max_episode_steps": 10**7,
}  # fmt: skip
"""Beyond these nothing is ever done within a life."""
MOST_PIXELS = 10_000


@dataclass(frozen=True)
class HybridConfig:
    """Files that ``roboloop export RUN --frozen`` wrote."""

    behaviour: str = ""
    """For hybrid/...: the policy that moves the robot while the simulator's parameters are learned."""
    generators: tuple[str, ...] = ()
    """For tuned/...: what sets the parameters; each control step draws one of them."""


@dataclass(frozen=True)
class EnvConfig:
    """One task, and how its episodes are cut."""

    id: str = "metaworld/reach-v3"
    """Suite and task, such as metaworld/reach-v3, gym/HalfCheetah-v5, dmc/walker-walk, doom/basic or panda/reach; with
    envpool/ in front of one of the first three, EnvPool's port of it."""
    num_envs: int = 1
    """Copies of the environment that are stepped together."""
    frame_stack: int = 1
    """Latest observations that a policy sees at once; stacked by the reader, never stored twice."""
    action_repeat: int = 1
    """Simulator steps per action (the frame skip of Doom and Atari, customarily 4); their rewards are summed."""
    max_episode_steps: int | None = None
    """Horizon of training episodes in simulator steps; none means the suite's own."""
    eval_max_episode_steps: int | None = None
    """Horizon of evaluation episodes in simulator steps; none means the suite's own."""
    observe: str = "state"
    """What is seen where a suite has both (dmc, soft): state = the simulator's numbers, pixels = a camera's picture."""
    image_size: tuple[int, int] | None = None
    """Height and width of pictures that are observations; none means the suite's own (Doom 72 128, Atari 84 84,
    DM Control, soft 64 64)."""
    grayscale: bool | None = None
    """Whether such pictures are grey; none means the suite's own (Atari yes, all others no)."""
    reward_version: str = "v2"
    """Meta-World's reward function: v1 or v2."""
    goal_mode: str = "random"
    """Meta-World's goals: random draws one per episode from its seed, fixed keeps a single one."""
    panda: PandaConfig = field(default_factory=PandaConfig)
    """The Panda rig's rates, limits, rewards and driver."""
    legged: LeggedConfig = field(default_factory=LeggedConfig)
    """Noise, pushes and domains of legged robots, and numbers that go before a variant's."""
    soft: SoftConfig = field(default_factory=SoftConfig)
    """Picks, rewards and first states of rope and cloth."""

    hybrid: HybridConfig = field(default_factory=HybridConfig)
    """The frozen policies inside a hybrid simulator."""

    def check(self) -> None:
        """Refuse values that no environment can honour."""
        for name in MOST:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"env.{name} must be at least 1, got {value}")
            if value is not None and value > MOST[name]:
                raise ConfigError(f"env.{name} must be at most {MOST[name]}, got {value}")
        if self.image_size is not None and (len(self.image_size) != 2 or min(self.image_size) < 1):
            raise ConfigError(f"env.image_size must be height and width, got {list(self.image_size)}")
        if self.image_size is not None and max(self.image_size) > MOST_PIXELS:
            raise ConfigError(f"env.image_size may be {MOST_PIXELS} pixels a side, got {list(self.image_size)}")
        named = ("observe", VIEWS), ("reward_version", REWARD_VERSIONS), ("goal_mode", GOAL_MODES)
        for name, known in named:
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"env.{name} must be one of {', '.join(known)}, got {value!r}{nearest(value, known)}")
        self.panda.check()
        self.legged.check()
        self.soft.check()
        if self.panda.address and self.num_envs > 1:
            raise ConfigError(f"env.num_envs must be 1 with env.panda.address: one arm is there, not {self.num_envs}")

    @property
    def on_wall_clock(self) -> bool:
        """Whether a step takes as long as it says, as on a robot: nothing is gained by several at once."""
        return self.id.startswith("panda/") and self.panda.driver == "process"

    def horizon(self, suite: int, evaluation: bool) -> int:
        """Return the simulator steps of an episode, given the suite's own horizon."""
        return (self.eval_max_episode_steps if evaluation else self.max_episode_steps) or suite
