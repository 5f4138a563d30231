"""Rope and cloth as data, and the MuJoCo model of each: one flex on a table under a camera."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roboloop.core.types import Array
from roboloop.envs.soft.geometry import grid_triangles
from roboloop.envs.soft.view import View

CAMERA_HEIGHT_M = 0.75
TIMESTEP_S = 0.004
GRAVITY_M_S2 = 9.81
CLEARANCE_M = 0.001
"""Between the table and what lies on it, so that nothing begins inside a contact."""


@dataclass(frozen=True)
class Flex:
    """A grid of particles joined by edges of fixed length: n x 1 is a rope, n x n a sheet."""

    name: str
    rows: int
    columns: int
    spacing_m: float
    radius_m: float
    mass_kg: float
    half_m: float
    """Half of the width of table on which a hand can be, and which is seen."""
    solver: str
    """Along a rope's chain of edges conjugate gradients converge badly; a sheet has many edges, and Newton is slow."""
    iterations: int
    edge_solref: str
    edge_solimp: str
    drag_ns_m: tuple[float, float, float]
    """Resistance of the air to each particle; without it a thrown end whips for seconds."""
    hand_speed_m_s: float
    hold_steps: int
    """Physics steps before letting go, so that what was pushed together does not spring away."""
    settle_steps: int
    """Physics steps after letting go; what still moves then is stopped, so that positions are the whole state."""
    friction: float = 0.5

    @property
    def is_sheet(self) -> bool:
        """Whether it has an area."""
        return self.columns > 1

    @property
    def num_particles(self) -> int:
        """Of the grid."""
        return self.rows * self.columns

    @property
    def length_m(self) -> float:
        """Of the rope, or of a side of the sheet."""
        return (self.rows - 1) * self.spacing_m

    @property
    def rest_height_m(self) -> float:
        """Of particles that lie on the table."""
        return self.radius_m + CLEARANCE_M

    @property
    def flat_m(self) -> Array:
        """Places ``[N, 3]`` of the particles of the flat sheet, or of the straight rope, in the middle of the table."""
        x = (np.arange(self.rows) - 0.5 * (self.rows - 1)) * self.spacing_m
        y = (np.arange(self.columns) - 0.5 * (self.columns - 1)) * self.spacing_m
        grid = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
        return np.column_stack([grid, np.full(len(grid), self.rest_height_m)])

    @cached_property
    def triangles(self) -> Array:
        """Of a sheet."""
        return grid_triangles(self.rows)

    @property
    def view(self) -> View:
        """The camera's."""
        return View(self.half_m, CAMERA_HEIGHT_M)

    @property
    def snap_m(self) -> float:
        """A particle is caught from within this distance: from everywhere on the object, from nowhere beside it."""
        return self.spacing_m * (0.75 if self.is_sheet else 0.5) + self.radius_m


ROPE = Flex(
    name="rope",
    rows=25,
    columns=1,
    spacing_m=0.02,
    radius_m=0.008,
    mass_kg=0.14,
    half_m=0.3,
    solver="Newton",
    iterations=4,
    edge_solref="0.008 1",
    edge_solimp="0.99 0.999 0.0001",
    drag_ns_m=(0.2, 0.2, 0.02),
    hand_speed_m_s=1.8,
    hold_steps=8,
    settle_steps=14,
)


def sheet(side: int) -> Flex:
    """Return a cloth of 24 cm with so many particles to a side."""
    # the fewer particles, the heavier each: drag goes with them, so that all fall alike
    share = 81 / (side * side)
    return Flex(
        name="cloth",
        rows=side,
        columns=side,
        spacing_m=0.24 / (side - 1),
        radius_m=0.005,
        mass_kg=0.1,
        half_m=0.2,
        solver="CG",
        iterations=30,
        edge_solref="0.01 1",
        edge_solimp="0.95 0.99 0.0001",
        drag_ns_m=(0.05 * share, 0.05 * share, 0.01 * share),
        hand_speed_m_s=1.8,
        hold_steps=8,
        settle_steps=16,
    )


def xml(flex: Flex, picture_size: int) -> str:
    """Return the MuJoCo model: a flex at rest on the table, and a camera over it."""
    dim = 2 if flex.is_sheet else 1
    color, table = ("0.25 0.45 0.8 1", "0.93 0.93 0.9 1") if flex.is_sheet else ("0.8 0.6 0.35 1", "0.2 0.35 0.25 1")
    gap = flex.spacing_m
    return f"""
<mujoco model="{flex.name}">
  <option timestep="{TIMESTEP_S}" gravity="0 0 {-GRAVITY_M_S2}" integrator="implicitfast" cone="pyramidal"
    solver="{flex.solver}" iterations="{flex.iterations}" tolerance="1e-6"/>
  <size memory="20M"/>
  <visual>
    <quality shadowsize="0" offsamples="0"/>
    <global offwidth="{picture_size}" offheight="{picture_size}"/>
    <headlight ambient="0.35 0.35 0.35" diffuse="0 0 0" specular="0 0 0"/>
  </visual>
  <worldbody>
    <light name="lamp" pos="0 0 1" dir="0.5 0.3 -1" directional="true" diffuse="0.7 0.7 0.7" specular="0 0 0"
      castshadow="false"/>
    <camera name="top" pos="0 0 {CAMERA_HEIGHT_M}" fovy="{flex.view.fovy_deg}"/>
    <geom name="table" type="plane" size="1 1 0.02" rgba="{table}" friction="{flex.friction} 0.005 0.0001"/>
    <flexcomp name="{flex.name}" type="grid" dim="{dim}" count="{flex.rows} {flex.columns} 1"
      spacing="{gap} {gap} {gap}" pos="0 0 {flex.rest_height_m}" radius="{flex.radius_m}" mass="{flex.mass_kg}"
      rgba="{color}">
      <edge equality="true" damping="0.01" solref="{flex.edge_solref}" solimp="{flex.edge_solimp}"/>
      <contact selfcollide="none" internal="false" condim="3" solref="0.01 1"
        friction="{flex.friction} 0.005 0.0001"/>
    </flexcomp>
  </worldbody>
</mujoco>"""
