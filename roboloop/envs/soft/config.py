"""What a user can ask of rope and cloth; plain data, imports no simulator."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError, nearest

GIVEN, CHOSEN = "given", "chosen"
REWARDS = ("coverage", "area", "convex", "concave", "diagonal", "distance", "line", "fold", "seam")
RANDOM = ("colors", "light", "camera", "friction", "mass", "damping")
STARTS = ("random", "fixed")


@dataclass(frozen=True)
class SoftConfig:
    """Who picks, what pays, and what differs from episode to episode."""

    pick: str = CHOSEN
    """Who says where the object is held: chosen = the action does, given = the environment draws a place on the object
    and shows it."""
    reward: str = ""
    """Geometry that pays after each action; empty = the task's own. Cloth: coverage, area, convex, concave, diagonal,
    distance; rope: line, distance."""
    randomize: tuple[str, ...] = ()
    """What is drawn anew in each episode: some of colors, light, camera, friction, mass, damping."""
    start: str = "random"
    """First states: random takes one of the pool, turned and shifted; fixed is the same in all episodes."""
    pool: int = 256
    """Crumpled states that are made once, when first asked for, and then started from; 0 makes one for each episode."""

    def check(self) -> None:
        """Refuse values that no task can honour."""
        known = {"pick": (GIVEN, CHOSEN), "start": STARTS, "reward": ("", *REWARDS)}
        for name, values in known.items():
            value = getattr(self, name)
            if value not in values:
                names = ", ".join(filter(None, values))
                raise ConfigError(f"env.soft.{name} must be one of {names}, got {value!r}{nearest(value, values)}")
        for value in self.randomize:
            if value not in RANDOM:
                names = ", ".join(RANDOM)
                raise ConfigError(f"env.soft.randomize takes {names}, not {value!r}{nearest(value, RANDOM)}")
        if self.pool < 0:
            raise ConfigError(f"env.soft.pool must be 0 or more, got {self.pool}")
