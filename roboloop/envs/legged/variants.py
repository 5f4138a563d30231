"""How a robot and its floor can differ from their description: variants as data, and domains drawn per episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roboloop.core.errors import ConfigError, nearest
from roboloop.core.types import Array
from roboloop.envs.legged.config import LeggedConfig
from roboloop.envs.legged.engine import Contact, Mattress
from roboloop.envs.legged.model import Link, RobotModel, Vec3


@dataclass(frozen=True)
class Load:
    """Another mass and centre of mass of a link; its inertia stays."""

    mass_kg: float
    com_m: Vec3


@dataclass(frozen=True)
class Variant:
    """Differences from the robot's own table."""

    loads: Mapping[str, Load] = field(default_factory=dict)
    """By link."""
    torque_scale: tuple[float, ...] = ()
    """Per motor; empty = all 1."""
    friction: float | None = None
    restitution: float | None = None
    stiffness_n_m: float | None = None
    damping_ns_m: float | None = None
    latency_s: float = 0.0
    emf_speed_rad_s: float = 0.0
    """0 = motors do at any speed what they do at rest."""
    mattress: Mattress | None = None

    @property
    def is_soft(self) -> bool:
        """Whether it says how hard contacts are."""
        return self.stiffness_n_m is not None or self.damping_ns_m is not None


@dataclass(frozen=True)
class Ranges:
    """Uniform ranges of a robot's domains: factors of the nominal, but damping and latency as they are."""

    mass: tuple[float, float]
    inertia: tuple[float, float]
    torque: tuple[float, float]
    joint_damping: tuple[float, float]
    latency_s: tuple[float, float]
    """Of actions and of observations, each its own draw."""
    friction: tuple[float, float]
    restitution: tuple[float, float]
    spinning_friction: tuple[float, float]
    log10_hardness: tuple[float, float]
    """Of stiffness and damping together."""


class Situation:
    """What holds during one episode: robot, contact, motors, latencies."""

    def __init__(self, model: RobotModel, contact: Contact, variant: Variant) -> None:
        self.model, self.contact = model, contact
        self.torque_nm: Array = model.torque_nm * (np.array(variant.torque_scale) if variant.torque_scale else 1.0)
        self.action_latency_s = variant.latency_s
        self.obs_latency_s = 0.0
        self.emf_speed_rad_s = variant.emf_speed_rad_s


def find(name: str, table: Mapping[str, Variant], robot: str, engine: str) -> Variant:
    """Return a variant by its name; no name is the robot as described."""
    if not name:
        return Variant()
    if name not in table:
        known = ", ".join(table)
        raise ConfigError(f"unknown variant {name!r} of {robot}{nearest(name, table)} (known: {known})")
    variant = table[name]
    if variant.mattress is not None and engine != "bullet":
        raise ConfigError(f"{robot}/{engine}-{name}: only bullet has a deformable floor")
    if variant.is_soft and engine == "dart":
        raise ConfigError(f"{robot}/{engine}-{name}: contacts of dart are rigid; bullet and mujoco have soft ones")
    return variant


def override(variant: Variant, cfg: LeggedConfig, num_joints: int) -> Variant:
    """Return the variant with what the user said about it."""
    scale = cfg.torque_scale or variant.torque_scale
    if scale and len(scale) != num_joints:
        raise ConfigError(f"env.legged.torque_scale must be {num_joints} numbers, one per motor, got {len(scale)}")

    def chosen(said: float | None, own: float | None) -> float | None:
        return own if said is None else said

    return replace(
        variant,
        torque_scale=scale,
        friction=chosen(cfg.friction, variant.friction),
        restitution=chosen(cfg.restitution, variant.restitution),
        stiffness_n_m=chosen(cfg.contact_stiffness_n_m, variant.stiffness_n_m),
        damping_ns_m=chosen(cfg.contact_damping_ns_m, variant.damping_ns_m),
        latency_s=variant.latency_s if cfg.latency_s is None else cfg.latency_s,
        emf_speed_rad_s=variant.emf_speed_rad_s if cfg.emf_speed_rad_s is None else cfg.emf_speed_rad_s,
    )


def applied(variant: Variant, model: RobotModel, contact: Contact) -> tuple[RobotModel, Contact]:
    """Return robot and contact with the variant's differences."""
    links = {
        link.name: replace(link, mass_kg=load.mass_kg, com_m=load.com_m)
        for link in model.links
        if (load := variant.loads.get(link.name)) is not None
    }
    said = {
        "friction": variant.friction,
        "restitution": variant.restitution,
        "stiffness_n_m": variant.stiffness_n_m,
        "damping_ns_m": variant.damping_ns_m,
    }
    changes = {name: value for name, value in said.items() if value is not None}
    return model.changed(links) if links else model, contact._replace(**changes)


def draw(ranges: Ranges, situation: Situation, rng: np.random.Generator) -> None:
    """Change a situation to one that is drawn around it."""
    model = situation.model
    mass, inertia = (rng.uniform(*r, len(model.links)) for r in (ranges.mass, ranges.inertia))
    damping = rng.uniform(*ranges.joint_damping, model.num_joints)
    links: dict[str, Link] = {}
    for i, link in enumerate(model.links):
        joint = None if link.joint is None else replace(link.joint, damping=float(damping[i - 1]))
        moments = [float(x * inertia[i]) for x in link.inertia_kg_m2]
        links[link.name] = replace(
            link,
            joint=joint,
            mass_kg=float(link.mass_kg * mass[i]),
            inertia_kg_m2=(moments[0], moments[1], moments[2]),
        )
    situation.model = model.changed(links)
    situation.torque_nm = situation.torque_nm * rng.uniform(*ranges.torque, model.num_joints)
    situation.action_latency_s += float(rng.uniform(*ranges.latency_s))
    situation.obs_latency_s += float(rng.uniform(*ranges.latency_s))
    nominal, hardness = situation.contact, 10 ** float(rng.uniform(*ranges.log10_hardness))
    situation.contact = Contact(
        friction=nominal.friction * float(rng.uniform(*ranges.friction)),
        spinning_friction=float(rng.uniform(*ranges.spinning_friction)),
        restitution=nominal.restitution * float(rng.uniform(*ranges.restitution)),
        stiffness_n_m=nominal.stiffness_n_m * hardness,
        damping_ns_m=nominal.damping_ns_m * hardness,
    )
