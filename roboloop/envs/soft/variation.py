"""Looks and physics that are drawn anew in each episode: what a policy must not depend on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from roboloop.envs.soft.view import View

COLOR, LIGHT, AMBIENT = 0.15, 0.3, 0.15
"""Half widths: of each color's parts, of the lamp's brightness, of the light without a source."""
CAMERA_M = 0.01
FACTORS = {"friction": 1.5, "mass": 1.5, "damping": 2.0}
"""A quantity is multiplied by up to so much, or divided."""

_LOOKS = ("geom_rgba", "flex_rgba", "light_diffuse", "light_dir", "cam_pos")
_PHYSICS = ("geom_friction", "flex_friction", "dof_damping")
_HEAVIER = ("body_mass", "body_inertia", "dof_M0")
_LIGHTER = ("body_invweight0", "dof_invweight0", "flexedge_invweight0")


class Variation:
    """Changes a MuJoCo model, always from the values that it came with."""

    def __init__(self, model: Any, view: View, names: tuple[str, ...]) -> None:
        self._model, self._view, self._names = model, view, names
        fields = (*_LOOKS, *_PHYSICS, *_HEAVIER, *_LIGHTER)
        self._own = {name: getattr(model, name).copy() for name in fields}
        self._ambient = np.array(model.vis.headlight.ambient)

    def clear(self) -> None:
        """Make the model as it was described."""
        for name, value in self._own.items():
            getattr(self._model, name)[:] = value
        self._model.vis.headlight.ambient[:] = self._ambient

    def draw(self, rng: np.random.Generator) -> View:
        """Vary what was asked for and return the camera's view."""
        # all of it is drawn, so that one name less changes nothing of the others
        model, own = self._model, self._own
        color = {name: rng.uniform(-COLOR, COLOR, 3) for name in ("geom_rgba", "flex_rgba")}
        light, ambient, tilt = rng.uniform(-LIGHT, LIGHT), rng.uniform(-AMBIENT, AMBIENT), rng.uniform(-0.3, 0.3, 2)
        camera_m = rng.uniform(-CAMERA_M, CAMERA_M, 3)
        factor = {name: float(np.exp(rng.uniform(-1, 1) * np.log(most))) for name, most in FACTORS.items()}
        if "colors" in self._names:
            for name, change in color.items():
                getattr(model, name)[:, :3] = np.clip(own[name][:, :3] + change, 0, 1)
        if "light" in self._names:
            model.light_diffuse[:] = np.clip(own["light_diffuse"] + light, 0, 1)
            model.light_dir[:, :2] = own["light_dir"][:, :2] + tilt
            model.vis.headlight.ambient[:] = np.clip(self._ambient + ambient, 0, 1)
        self._vary_physics(factor)
        if "camera" not in self._names:
            return self._view
        model.cam_pos[:] = own["cam_pos"] + camera_m
        # the lens stays: from higher up more of the table is seen
        x, y, higher = camera_m.tolist()
        height = self._view.height_m + higher
        half = self._view.half_m * height / self._view.height_m
        return dataclasses.replace(self._view, half_m=half, height_m=height, x_m=x, y_m=y)

    def _vary_physics(self, factor: dict[str, float]) -> None:
        model, own = self._model, self._own
        if "friction" in self._names:
            for name in ("geom_friction", "flex_friction"):
                getattr(model, name)[:, 0] = own[name][:, 0] * factor["friction"]
        if "mass" in self._names:
            for name in _HEAVIER:
                getattr(model, name)[:] = own[name] * factor["mass"]
            for name in _LIGHTER:
                getattr(model, name)[:] = own[name] / factor["mass"]
        if "damping" in self._names:
            model.dof_damping[:] = own["dof_damping"] * factor["damping"]
