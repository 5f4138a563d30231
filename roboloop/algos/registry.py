"""From a name such as ``sac`` to the record of an algorithm: ours, a plug-in's, or any by ``module:attr``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from roboloop.algos.spec import AlgorithmSpec
from roboloop.core.errors import ConfigError, nearest
from roboloop.core.resolve import entry_points, load_named
from roboloop.core.vouched import check_code

GROUP = "roboloop.algorithms"
"""Entry points by which an installed package brings algorithms."""

ALGORITHMS = {
    "sac": "roboloop.algos.sac.config:SPEC",
    "mtsac": "roboloop.algos.mtsac.config:SPEC",
    "ppo": "roboloop.algos.ppo.config:SPEC",
    "dt": "roboloop.algos.imitation.config:DECISION_TRANSFORMER",
    "bc": "roboloop.algos.imitation.config:CLONING",
    "dac": "roboloop.algos.guided.config:DAC",
    "gail": "roboloop.algos.gail.config:SPEC",
    "lfgp": "roboloop.algos.guided.config:LFGP",
    "vpace": "roboloop.algos.guided.config:VPACE",
    "sqil": "roboloop.algos.guided.config:SQIL",
    "rce": "roboloop.algos.guided.config:RCE",
    "dynamics": "roboloop.algos.simgan.dynamics_config:SPEC",
    "refine": "roboloop.algos.simgan.refine_config:SPEC",
    "pick": "roboloop.algos.pick.config:SPEC",
}
"""Name -> ``module:attr`` of the record."""


def known() -> list[str]:
    """Return the names of all algorithms, ours and those of installed packages."""
    return [*ALGORITHMS, *(name for name in entry_points(GROUP) if name not in ALGORITHMS)]


def find(name: str) -> AlgorithmSpec:
    """Return the record of an algorithm."""
    path = ALGORITHMS.get(name) or entry_points(GROUP).get(name) or name
    if ":" not in path:
        raise ConfigError(f"unknown algorithm {name!r}{nearest(name, known())} (known: {', '.join(known())})")
    if path == name:  # no name of ours or of a plug-in: code that somebody named
        check_code("algo.name", name, [name.partition(":")[0]])
    spec = load_named(path, "algorithm")
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(f"algorithm {name!r} must be an AlgorithmSpec, not {type(spec).__name__}")
    return spec


def default_configs() -> Iterator[tuple[str, Any]]:
    """Yield the name and the default config section of every algorithm of ours."""
    for name in ALGORITHMS:
        yield name, find(name).config()


def default_config(name: str, current: Any = None) -> Any:
    """Return the default config section of an algorithm, under the name by which it was asked for."""
    config = find(name).config()
    return config if config.name == name else dataclasses.replace(config, name=name)  # type: ignore[type-var]
