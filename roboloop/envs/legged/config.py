"""What a user can ask of a legged robot; plain data, imports no simulator."""

from __future__ import annotations

from dataclasses import dataclass

from roboloop.core.errors import ConfigError


@dataclass(frozen=True)
class HybridConfig:
    """Files that ``roboloop export RUN --frozen`` wrote."""

    behaviour: str = ""
    """For hybrid/...: the policy that moves the robot while the simulator's parameters are learned."""
    generators: tuple[str, ...] = ()
    """For tuned/...: what sets the parameters; each control step draws one of them."""


@dataclass(frozen=True)
class LeggedConfig:
    """Noise, and numbers that go before those of the variant in the environment's id; none = the variant's own."""

    obs_noise: float = 0.1
    """Half width of the uniform noise on each scaled observation; reward and termination are free of it."""
    action_noise: float = 0.05
    """Half width of the uniform noise on each action, unseen by the policy."""
    torque_scale: tuple[float, ...] = ()
    """What each motor can do, as a share of its limit, such as 1 1 0.5."""
    friction: float | None = None
    """Friction of feet and floor together."""
    restitution: float | None = None
    """Share of the speed with which a foot comes back from the floor."""
    contact_stiffness_n_m: float | None = None
    """Spring of the contact."""
    contact_damping_ns_m: float | None = None
    """Damper of the contact."""
    latency_s: float | None = None
    """Time from an action to its torque."""
    emf_speed_rad_s: float | None = None
    """Joint speed at which a motor that drives can do nothing more; 0 = no such limit."""
    randomize: bool = False
    """Draw masses, inertias, motors, damping, latencies and contact anew in each episode."""
    push_n: float = 0.0
    """Half width of a random force on each axis of each foot, drawn anew in every substep."""

    def check(self) -> None:
        """Refuse values that no robot can honour."""
        for name in (
            "obs_noise",
            "action_noise",
            "friction",
            "restitution",
            "contact_stiffness_n_m",
            "contact_damping_ns_m",
            "latency_s",
            "emf_speed_rad_s",
            "push_n",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"env.legged.{name} must be 0 or more, got {value:g}")
        if self.contact_stiffness_n_m == 0 and self.contact_damping_ns_m == 0:
            raise ConfigError("env.legged: a contact without stiffness and damping holds nothing")
