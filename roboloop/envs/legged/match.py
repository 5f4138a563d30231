"""How alike a robot is in several engines: what they say of it, and how rollouts of the same torques part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from roboloop.core.rng import stream
from roboloop.core.types import Array
from roboloop.envs.legged.engine import Engine, make_engine
from roboloop.envs.legged.model import RobotModel
from roboloop.envs.legged.variants import applied, find
from roboloop.envs.legged.world import CONTROL_S, SUBSTEPS, LeggedTask

FACTS = {
    "link positions": "m",
    "link rotations": "rad",
    "centres of mass": "m",
    "feet": "m",
    "masses": "kg",
    "inertias": "kg m²",
    "joint limits": "rad",
    "joint damping": "N m s",
}
"""What is compared, and its unit."""
FLIGHT_M = 20.0
"""How high rollouts begin that shall touch nothing."""


class Match(NamedTuple):
    """The numbers of a report; the first engine is what the others are compared with in rollouts."""

    robot: str
    engines: tuple[str, ...]
    facts: dict[str, dict[str, float]]
    """Per fact and engine the greatest difference from the description, over all poses."""
    flight_m: dict[str, Array]
    """Per engine how far the links are from the first engine's after k control steps, without contact: median."""
    contact_m: dict[str, Array]
    """The same on the floor."""
    drop_m: dict[str, Array]
    """Height of the lowest foot after a limp robot is let go, one number per substep."""


def match(task: LeggedTask, names: Sequence[str], poses: int = 20, rollouts: int = 10, steps: int = 50) -> Match:
    """Compare engines, each named as in an environment's id."""
    engines = {name: _engine(task, name) for name in names}
    try:
        facts = {name: _facts(task.model, engine, poses) for name, engine in engines.items()}
        flight: dict[str, list[Array]] = {name: [] for name in names}
        contact: dict[str, list[Array]] = {name: [] for name in names}
        for number in range(rollouts):
            for lifted, found in ((FLIGHT_M, flight), (0.0, contact)):
                for name, way in _parting(task, engines, number, lifted, steps).items():
                    found[name].append(way)
        drop = {name: _drop(task, engine) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            engine.close()
    return Match(
        robot=task.model.name,
        engines=tuple(names),
        facts={fact: {name: facts[name][fact] for name in names} for fact in FACTS},
        flight_m={name: np.median(flight[name], axis=0) for name in names},
        contact_m={name: np.median(contact[name], axis=0) for name in names},
        drop_m=drop,
    )


def _engine(task: LeggedTask, name: str) -> Engine:
    engine, _, variant_name = name.partition("-")
    variant = find(variant_name, task.variants, task.model.name, engine)
    model, contact = applied(variant, task.model, task.contact)
    return make_engine(engine, model, contact, variant.mattress)


def _facts(model: RobotModel, engine: Engine, poses: int) -> dict[str, float]:
    """Return how far an engine is from the description, at zero and at random poses high above the floor."""
    rng, worst = stream(0, "match poses"), dict.fromkeys(FACTS, 0.0)
    low, high = model.limits_rad
    for number in range(poses):
        q = np.zeros(model.root_q + model.num_joints)
        if number:
            q[: model.root_q] = rng.uniform(-1, 1, model.root_q)
            q[model.root_q :] = rng.uniform(low, high)
        if model.root == "free":
            q[3:7] = q[3:7] / np.linalg.norm(q[3:7]) if number else (0, 0, 0, 1)
        q[1 if model.root == "planar" else 2] += FLIGHT_M
        engine.reset(q, np.zeros(model.root_dq + model.num_joints))
        said, (positions, rotations) = engine.report(), model.poses(q)
        coms = positions + np.einsum("lij,lj->li", rotations, [link.com_m for link in model.links])
        differences = (
            said.position_m - positions,
            np.linalg.norm(said.rotation - rotations, axis=(1, 2)) / np.sqrt(2),
            said.com_m - coms,
            engine.feet() - model.foot_positions(q),
            said.mass_kg - [link.mass_kg for link in model.links],
            said.inertia_kg_m2 - [link.inertia_kg_m2 for link in model.links],
            said.limits_rad - model.limits_rad,
            said.damping - [joint.damping for joint in model.joints],
        )
        for fact, difference in zip(FACTS, differences, strict=True):
            worst[fact] = max(worst[fact], float(np.abs(difference).max()))
    return worst


def _parting(
    task: LeggedTask, engines: dict[str, Engine], number: int, lifted_m: float, steps: int
) -> dict[str, Array]:
    """Return how far the links are from the first engine's while all are driven by the torques that it was."""
    model, rng = task.model, stream(number, "match rollout")
    q, dq = task.start(rng)
    q[1 if model.root == "planar" else 2] += lifted_m
    first = next(iter(engines))
    torques: list[Array] = []
    ways = {first: _led(engines[first], model, (q, dq), rng, steps, torques)}
    for name, engine in engines.items():
        if name != first:
            engine.reset(q, dq)
            ways[name] = np.stack(
                [_links_after(engine, model, torques[k : k + SUBSTEPS]) for k in _beginnings(torques)]
            )
    apart = {name: np.linalg.norm(way - ways[first], axis=-1) for name, way in ways.items()}
    return {name: np.sqrt((distance**2).mean(1)) for name, distance in apart.items()}


def _beginnings(torques: Sequence[Array]) -> range:
    return range(0, len(torques), SUBSTEPS)


def _led(
    engine: Engine,
    model: RobotModel,
    start: tuple[Array, Array],
    rng: np.random.Generator,
    steps: int,
    torques: list[Array],
) -> Array:
    """Hold the joints with some unrest, and write down the torques of every substep."""
    engine.reset(*start)
    held, limit, way = start[0][model.root_q :], model.torque_nm, []
    for _ in range(steps):
        unrest = rng.uniform(-0.15, 0.15, model.num_joints) * limit
        for _ in range(SUBSTEPS):
            q, dq = engine.read()
            wanted = 2 * limit * (held - q[model.root_q :]) - 0.05 * limit * dq[model.root_dq :] + unrest
            torques.append(np.clip(wanted, -limit, limit))
            engine.step(torques[-1])
        way.append(model.poses(engine.read()[0])[0])
    return np.stack(way)


def _links_after(engine: Engine, model: RobotModel, torques: Sequence[Array]) -> Array:
    for torque_nm in torques:
        engine.step(torque_nm)
    return model.poses(engine.read()[0])[0]


def _drop(task: LeggedTask, engine: Engine, seconds: float = 0.4) -> Array:
    """Return the height of the lowest foot of a limp robot."""
    engine.reset(*task.start(stream(0, "match drop")))
    rest, heights = np.zeros(task.model.num_joints), []
    for _ in range(round(seconds / CONTROL_S) * SUBSTEPS):
        engine.step(rest)
        heights.append(float(engine.feet()[:, 2].min()))
    return np.array(heights)
