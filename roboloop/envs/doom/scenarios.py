"""What the Doom tasks are, as data: buttons, horizons, rewards. After Sample Factory's, where it has the task.

The scenarios are those of ViZDoom's wheel. Sample Factory's battle, battle2, duel and dwango5 are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Option = Mapping[str, float]
"""Buttons that are held together, by ViZDoom's names."""
Variables = Mapping[str, float]
"""Game variables by ViZDoom's names."""


def either(*buttons: str) -> tuple[Option, ...]:
    """Return a column that holds none or one of the buttons."""
    return ({}, *({button: 1.0} for button in buttons))


def turning(most_degrees: float, count: int) -> tuple[Option, ...]:
    """Return a column of evenly spaced turns per tic; the first choice does nothing."""
    half = count // 2
    steps = [0, *(sign * (i + 1) for i in range(half) for sign in (1, -1))]
    return tuple({"TURN_LEFT_RIGHT_DELTA": most_degrees * step / half} for step in steps)


@dataclass(frozen=True)
class Delta:
    """A reward for each unit by which a game variable rises or falls during an action."""

    variable: str
    rise: float
    fall: float
    most: float = 1e9

    def __call__(self, before: Variables, after: Variables) -> float:
        """Return the reward of one action."""
        change = min(after[self.variable] - before[self.variable], self.most)
        return change * (self.rise if change > 0 else self.fall)


@dataclass(frozen=True)
class Rise:
    """A fixed reward for each action during which a game variable rose."""

    variable: str
    reward: float

    def __call__(self, before: Variables, after: Variables) -> float:
        """Return the reward of one action."""
        return self.reward if after[self.variable] > before[self.variable] else 0.0


@dataclass(frozen=True)
class Measure:
    """A game variable as part of the observation, scaled to a small number."""

    variable: str
    scale: float = 1.0
    most: float = 5.0


@dataclass(frozen=True)
class Scenario:
    """One task."""

    config: str
    """Name of the shipped .cfg, which names the .wad, the skill and the wad's own rewards."""
    columns: tuple[tuple[Option, ...], ...]
    """Action columns, each a tuple of choices."""
    horizon: int = 2100
    """Tics; ours where the scenario has none (defend-the-line, take-cover)."""
    scale: float = 1.0
    """Of the game's reward."""
    shaping: tuple[Delta | Rise, ...] = ()
    """Added to the scaled reward; none of it is in the raw reward."""
    measures: tuple[Measure, ...] = ()
    """What is seen beside the picture."""
    has_goal: bool = False
    """Whether the world's end with the player alive is a success."""
    living_reward: float | None = None
    death_penalty: float | None = None
    render_weapon: bool = True


TURN = either("TURN_LEFT", "TURN_RIGHT")
WALK = either("MOVE_FORWARD", "MOVE_BACKWARD")
STRAFE = either("MOVE_LEFT", "MOVE_RIGHT")
ATTACK = either("ATTACK")


def _gathering(config: str) -> Scenario:
    """Return a scenario of living on medkits: a hundredth a tic, and one for each that is found."""
    return Scenario(
        config,
        columns=(either("TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD", "MOVE_BACKWARD"),),
        shaping=(Rise("HEALTH", 1.0),),
        living_reward=0.01,
        death_penalty=0.0,
        render_weapon=False,
    )


WEAPONS = range(1, 8)
SCENARIOS: Mapping[str, Scenario] = {
    "basic": Scenario("basic", (either("MOVE_LEFT", "MOVE_RIGHT", "ATTACK"),), horizon=300, scale=0.01, has_goal=True),
    "deadly-corridor": Scenario("deadly_corridor", (TURN, WALK, STRAFE, ATTACK), scale=0.01, has_goal=True),
    "deathmatch": Scenario(
        "deathmatch",
        (WALK, STRAFE, turning(10.0, 11), ATTACK, either("SPEED"), either(*(f"SELECT_WEAPON{i}" for i in range(1, 7)))),
        horizon=4200,
        shaping=(
            Delta("HITCOUNT", 0.01, 0.0, most=5),
            Delta("DAMAGECOUNT", 0.003, 0.0, most=200),
            Delta("HEALTH", 0.005, 0.003),
            Delta("ARMOR", 0.005, 0.001),
        ),
        measures=(
            Measure("HEALTH", 1 / 30, most=10),
            Measure("ARMOR", 1 / 30, most=10),
            Measure("KILLCOUNT", 1 / 10, most=50),
            Measure("SELECTED_WEAPON", most=10),
            Measure("SELECTED_WEAPON_AMMO", 1 / 15),
            Measure("ATTACK_READY"),
            *(Measure(f"WEAPON{i}") for i in WEAPONS),
            *(Measure(f"AMMO{i}", 1 / 15) for i in WEAPONS),
        ),
    ),
    "defend-the-center": Scenario("defend_the_center", (TURN, ATTACK)),
    "defend-the-line": Scenario("defend_the_line", (TURN, ATTACK)),
    "health-gathering": _gathering("health_gathering"),
    "health-gathering-supreme": _gathering("health_gathering_supreme"),
    "my-way-home": Scenario("my_way_home", (TURN, WALK), has_goal=True),
    "predict-position": Scenario("predict_position", (TURN, ATTACK), horizon=300, has_goal=True),
    "take-cover": Scenario("take_cover", (STRAFE,)),
}
