"""From a name such as ``wandb`` to a tracker: ours, a plug-in's, or any class by ``module:Class``."""

from __future__ import annotations

from collections.abc import Sequence

from roboloop.core.errors import ConfigError, UserError, nearest
from roboloop.core.raised import where
from roboloop.core.resolve import entry_points, load_named
from roboloop.track.trackers.tracker import Tracker

GROUP = "roboloop.trackers"
"""Entry points by which an installed package brings trackers."""

TRACKERS = {
    "tensorboard": "roboloop.track.trackers.tensorboard:TensorBoard",
    "wandb": "roboloop.track.trackers.wandb:Wandb",
    "trackio": "roboloop.track.trackers.trackio:Trackio",
}
"""Name -> ``module:Class``."""
_METHODS = ("open", "write", "close")


def known() -> list[str]:
    """Return the names of all trackers, ours and those of installed packages."""
    return [*TRACKERS, *(name for name in entry_points(GROUP) if name not in TRACKERS)]


def path_of(name: str) -> str:
    """Return the ``module:Class`` of a tracker, without importing it."""
    path = TRACKERS.get(name) or entry_points(GROUP).get(name) or name
    if ":" not in path:
        none = "; for none, give --trackers without a name" if name.lower() in ("none", "[]") else ""
        raise ConfigError(f"unknown tracker {name!r}{nearest(name, known())} (known: {', '.join(known())}){none}")
    return path


def make(names: Sequence[str]) -> dict[str, Tracker]:
    """Make trackers by name; a missing package or a wrong class is one line."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"tracker {twice[0]!r} is named twice")
    return {name: _make(name) for name in names}


def _make(name: str) -> Tracker:
    kind = load_named(path_of(name), "tracker")
    missing = [method for method in _METHODS if not callable(getattr(kind, method, None))]
    if not isinstance(kind, type) or missing:  # looked at before it is called: a file may name anything
        what = f"has no {missing[0]}()" if isinstance(kind, type) else "is no class"
        raise ConfigError(f"tracker {name!r} {what}: a tracker is a class with {', '.join(_METHODS)}")
    try:
        made: Tracker = kind()
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"tracker {name!r} cannot be made: {where(error)}") from error
    return made
