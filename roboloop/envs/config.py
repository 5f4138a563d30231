"""What a user can ask of any environment; each suite adds keys of its own (``envs/<suite>/suite.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roboloop.core.errors import ConfigError, nearest

VIEWS = ("state", "pixels")

MOST = {
    "num_envs": 10**6, "frame_stack": 1_000, "action_repeat": 10_000, "max_episode_steps": 10**7,
    "eval_max_episode_steps": 10**7,
}  # fmt: skip
"""Beyond these nothing is ever done within a life."""
MOST_PIXELS = 10_000


@dataclass(frozen=True)
class EnvConfig:
    """One task, and how its episodes are cut."""

    id: str = "metaworld/reach-v3"
    """Suite and task, such as metaworld/reach-v3, gym/HalfCheetah-v5, dmc/walker-walk, doom/basic or panda/reach; with
    envpool/ in front of one of the first three, EnvPool's port of it; of your own suite, module:attr/task."""
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
    reward: str = ""
    """Reward to learn from instead of the environment's own, as module:attr of reward(obs, action, next_obs) -> [N];
    returns are still reported in the environment's own."""
    tasks: str = ""
    """Auxiliary tasks for this environment, as module:attr of tasks(task, config); none means the suite's own."""
    expert: str = ""
    """Scripted expert for this environment, as module:attr of expert(task, name); none means the suite's own."""

    def check(self) -> None:
        """Refuse values that no environment can honour."""
        for name in MOST:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"env.{name} must be at least 1, got {value}")
            if value is not None and value > MOST[name]:
                raise ConfigError(f"env.{name} must be at most {MOST[name]}, got {value}")

    def code(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name code, each with its ``module:attr``."""
        for key in ("reward", "tasks", "expert"):
            if name := getattr(self, key):
                yield key, name

    def places(self) -> Iterator[tuple[str, str]]:
        """Yield the keys that name a file or an address, each with its value."""
        yield from ()

    @property
    def is_drawn(self) -> bool:
        """Whether observations are pictures that a renderer of ours draws."""
        return False

    @property
    def drawn_size(self) -> tuple[int, int] | None:
        """Height and width of such pictures; none means the suite's own."""
        return None

    @property
    def on_wall_clock(self) -> bool:
        """Whether a step takes as long as it says, as on a robot: nothing is gained by several at once."""
        return False

    @property
    def robot_address(self) -> str:
        """Where the one robot is that this environment moves; empty where each copy has its own."""
        return ""

    @property
    def rate_hz(self) -> float:
        """Decisions per second of a robot; 0 where time waits."""
        return 0.0

    def horizon(self, suite: int, evaluation: bool) -> int:
        """Return the simulator steps of an episode, given the suite's own horizon."""
        return (self.eval_max_episode_steps if evaluation else self.max_episode_steps) or suite


@dataclass(frozen=True)
class PictureEnvConfig(EnvConfig):
    """Of suites that show pictures."""

    image_size: tuple[int, int] | None = None
    """Height and width of pictures that are observations; none means the suite's own (Doom 72 128, Atari 84 84,
    DM Control, soft 64 64)."""

    def check(self) -> None:
        """Refuse pictures of no size or beyond all use."""
        super().check()
        if self.image_size is not None and (len(self.image_size) != 2 or min(self.image_size) < 1):
            raise ConfigError(f"env.image_size must be height and width, got {list(self.image_size)}")
        if self.image_size is not None and max(self.image_size) > MOST_PIXELS:
            raise ConfigError(f"env.image_size may be {MOST_PIXELS} pixels a side, got {list(self.image_size)}")


@dataclass(frozen=True)
class ViewEnvConfig(PictureEnvConfig):
    """Of suites that show either state or pictures."""

    observe: str = "state"
    """What is seen: state = the simulator's numbers, pixels = a camera's picture."""

    def check(self) -> None:
        """Refuse an unknown view."""
        super().check()
        check_choice("observe", self.observe, VIEWS)

    @property
    def is_drawn(self) -> bool:
        """Whether observations are pictures."""
        return self.observe == "pixels"

    @property
    def drawn_size(self) -> tuple[int, int] | None:
        """Height and width of the pictures."""
        return self.image_size


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a word that a key of the environment does not know."""
    if value not in known:
        raise ConfigError(f"env.{name} must be one of {', '.join(known)}, got {value!r}{nearest(value, known)}")
