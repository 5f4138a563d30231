"""What a user can ask of the Panda rig; plain data, imports no simulator."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from roboloop.core.config import RESOURCE
from roboloop.core.errors import ConfigError, nearest
from roboloop.core.resolve import entry_points

DOFS = ("x", "y", "z", "gripper")
PARTS = ("ee_pos", "ee_quat", "object", "difference", "goal", "gripper")
FAULTS = ("controller", "limit", "camera", "nan")
FaultKind = Literal["controller", "limit", "camera", "nan"]
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):([0-9]{1,5})")


DRIVERS = ("virtual", "process")
ROBOTS = "roboloop.robots"
"""Entry points by which an installed package brings robots."""


def known_drivers() -> list[str]:
    """Return the names of all drivers, ours and those of installed packages."""
    return [*DRIVERS, *entry_points(ROBOTS)]


@dataclass(frozen=True)
class FaultPlan:
    """One fault that the simulation shall have."""

    kind: FaultKind = "controller"
    """controller: it stops; limit: it stops at a limit; camera: no more pictures; nan: readings are no numbers."""
    at_s: float = 3.0
    """Seconds after the episode has begun."""
    chance: float = 1.0
    """Share of the episodes that have it, drawn from the episode's seed."""


@dataclass(frozen=True)
class PandaConfig:
    """The rig's rates, limits and rewards; where nothing is said, the task's own."""

    hz: float = 5.0
    """Actions per second."""
    episode_s: float = 12.0
    """Seconds after which an episode is truncated; env.max_episode_steps goes before it."""
    limits: Literal["small", "large"] = "small"
    """Workspace: small is what a task needs, large is what the arm can do."""
    max_speed_m_s: float = 0.2
    """Speed of the target when all three axes ask for all."""
    max_force_n: float = 12.5
    """The target runs ahead of the arm by no more than this over the stiffness."""
    dof: tuple[str, ...] = ()
    """Valid degrees of freedom, of x, y, z and gripper; the others stay where the task starts them."""
    observe: tuple[str, ...] = ()
    """Parts of the observation, of ee_pos, ee_quat, object, difference, goal and gripper, in this order."""
    reward: Literal["progress", "sparse"] = "progress"
    """progress: decrease of the task's distance, 1 = as fast as the target can move; sparse: 1 once successful."""
    done_on_success: bool = False
    """Whether success ends the episode."""
    hold_s: float = 0.5
    """Seconds for which the thresholds must hold to be a success."""
    camera_stale_s: float = 0.5
    """Age at which a picture is a fault."""
    driver: str = "virtual"
    """virtual: simulated time, in this process; process: a driver of its own on the wall clock; or a robot of your own,
    as an entry point of roboloop.robots or module:attr of make(task, config) -> Robot."""
    address: str = field(default="", metadata=RESOURCE)
    """Where a driver process stands by itself (roboloop rig), such as 127.0.0.1:7317; empty = one is started for us."""
    watchdog_s: float = 0.5
    """Seconds without a command after which the driver process holds by itself; a rig at an address has its own."""
    faults: tuple[FaultPlan, ...] = ()
    """Faults that the simulation shall have."""

    @property
    def port(self) -> int:
        """Port of a checked address."""
        return int(self.address.rpartition(":")[2])

    def check(self) -> None:
        """Refuse values that no rig can honour."""
        for name in ("hz", "episode_s", "max_speed_m_s", "max_force_n", "camera_stale_s", "watchdog_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"env.panda.{name} must be more than 0, got {getattr(self, name)}")
        if self.hz > 100:
            raise ConfigError(f"env.panda.hz must be at most 100, got {self.hz:g}")
        for name, known in (("dof", DOFS), ("observe", PARTS)):
            words = getattr(self, name)
            for word in words:
                if word not in known:
                    raise ConfigError(f"env.panda.{name} knows {', '.join(known)}, not {word!r}{nearest(word, known)}")
            if list(words) != [word for word in known if word in words]:
                raise ConfigError(f"env.panda.{name} must be in the order {', '.join(known)}, got {', '.join(words)}")
        if self.dof == ("gripper",):
            raise ConfigError("env.panda.dof must name at least one of x, y, z")
        self._check_driver()
        for fault in self.faults:
            if fault.kind not in FAULTS or not 0 <= fault.chance <= 1 or fault.at_s < 0:
                raise ConfigError(f"env.panda.faults: no rig can have {fault}")

    def _check_driver(self) -> None:
        known = known_drivers()
        if self.driver not in known and ":" not in self.driver:
            what = f"must be one of {', '.join(known)} or module:attr"
            raise ConfigError(f"env.panda.driver {what}, not {self.driver!r}{nearest(self.driver, known)}")
        if self.address:
            self._check_address()

    def _check_address(self) -> None:
        match = _ADDRESS.fullmatch(self.address)
        if match is None or not 0 < int(match[1]) < 1 << 16:
            raise ConfigError(f"env.panda.address must be 127.0.0.1:PORT, a rig on this machine, not {self.address!r}")
        if self.driver != "process":
            raise ConfigError(f"env.panda.address is for env.panda.driver process, not {self.driver}")
        if self.faults:
            raise ConfigError("env.panda.faults are those of the rig at env.panda.address: give them to roboloop rig")
