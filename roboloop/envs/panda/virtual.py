"""The rig in this process, on simulated time: a period passes as fast as it can be computed."""

from __future__ import annotations

from roboloop.core.types import Array, State
from roboloop.envs.panda.config import FaultPlan
from roboloop.envs.panda.features import features
from roboloop.envs.panda.robot import Command, Reading, Robot
from roboloop.envs.panda.simulation import PandaSimulation
from roboloop.envs.panda.tasks import RATE_HZ, PandaTask


class VirtualPanda(Robot):
    """A ``Robot`` whose clock stands still unless it is advanced."""

    def __init__(self, task: PandaTask, faults: tuple[FaultPlan, ...] = ()) -> None:
        self.features = features(task)
        self.simulation = PandaSimulation(task, faults)
        self._placed_at = 0

    def connect(self) -> None:
        """Nothing to reach."""

    def _to_s(self, tick: int) -> float:
        return (self._placed_at + tick) / RATE_HZ

    def now_s(self) -> float:
        """Return the simulated time."""
        return self._to_s(self.simulation.tick)

    def read(self) -> Reading:
        """Return the present sample."""
        return self.simulation.read(self._to_s)

    def send(self, command: Command) -> None:
        """Hand over a command."""
        self.simulation.send(command)

    def hold(self) -> None:
        """Stay."""
        self.simulation.hold()

    def prepare(self, seed: int) -> None:
        """Place everything anew, so that an episode depends on its seed alone."""
        self._placed_at += self.simulation.tick  # the clock never goes back
        self.simulation.place(seed)

    def start(self) -> None:
        """Start the controller."""
        self.simulation.start()

    def advance(self, duration_s: float) -> None:
        """Simulate."""
        self.simulation.advance(round(duration_s * RATE_HZ))

    def render(self) -> Array:
        """Return a picture of the scene."""
        return self.simulation.render()

    def get_state(self) -> State:
        """Return clock and simulation."""
        return {"placed_at": self._placed_at, "simulation": self.simulation.get_state()}

    def set_state(self, state: State) -> None:
        """Restore clock and simulation."""
        self._placed_at = int(state["placed_at"])
        self.simulation.set_state(state["simulation"])

    def close(self) -> None:
        """Release the picture's context."""
        self.simulation.close()
