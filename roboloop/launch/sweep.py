"""Sweeps: variants of one experiment times seeds, each of them a run whose config is checked before any is started."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from roboloop.core.config import flatten, override, read_file, resource_keys, to_dict
from roboloop.core.errors import ConfigError, nearest
from roboloop.core.files import is_there
from roboloop.run.commands import config_of
from roboloop.run.config import Experiment
from roboloop.run.rundir import RunDir, run_path
from roboloop.run.training import base_config
from roboloop.track.trackers import registry as trackers

KEYS = ("name", "base", "set", "axes", "zip", "exclude", "seeds", "space", "metric", "goal")
"""Of a sweep file."""
ENV = "env.id"
UNCHANGED = "base"
"""Name of the variant that changes nothing, or nothing but the environment."""
SCORE = "score"
"""The metric that runs are ranked by: success, then return, as a run ranks its own checkpoints."""
_MAX_NAME = 80
_OWN = {"experiment": "name", "runs_dir": "--runs-dir"}
"""Config keys that a sweep sets itself, and how to say them."""
_IN_VAIN = {"seed": "seeds", "experiment": "name"}
"""Config keys of the base that the runs of a sweep never have, and how to say them."""


@dataclass(frozen=True)
class Sweep:
    """What is asked for."""

    name: str
    base: Experiment
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Config keys and their values: every combination of them is a variant."""
    zips: Sequence[Mapping[str, Sequence[Any]]] = ()
    """Groups of keys whose values go together: the first of each, then the second of each."""
    exclude: Sequence[Mapping[str, Any]] = ()
    """What is left out: runs that have all of these values; keys and sections as the file has them."""
    seeds: Sequence[int] = (0,)
    space: Mapping[str, Any] = field(default_factory=dict)
    """Ranges, for a search."""
    metric: str = SCORE
    goal: str = "max"

    @property
    def directory(self) -> Path:
        """Where the sweep's runs are."""
        return Path(self.base.runs_dir) / self.name


class Planned(NamedTuple):
    """One run of a sweep."""

    variant: str
    seed: int
    settings: dict[str, Any]
    """What the variant changes, by config key."""
    config: Experiment

    @property
    def path(self) -> Path:
        """Run directory."""
        return run_path(self.config)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file, YAML or JSON."""
    data = read_file(path)
    for key in data:
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown sweep key '{key}'{nearest(str(key), KEYS)}")
    for key in ("axes", "set", "space"):
        if not isinstance(data.get(key, {}), dict):
            raise ConfigError(f"{path}: '{key}' must hold config keys, not {data[key]!r}")
    for key in ("zip", "exclude"):
        parts = data.get(key, [])
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise ConfigError(f"{path}: '{key}' must be a list of config keys with values")
    config = _config(data.get("base"), data.get("set", {}), path)
    for key, value in (("name", path.stem), ("metric", SCORE), ("goal", "max")):
        if not isinstance(data.setdefault(key, value), str):
            raise ConfigError(f"{path}: '{key}' must be a name, not {data[key]!r}")
    if data["goal"] not in ("max", "min"):
        raise ConfigError(f"{path}: 'goal' must be 'max' or 'min', not {data['goal']!r}")
    return Sweep(
        name=data["name"],
        base=config,
        axes=_axes(data.get("axes", {})),
        zips=[_axes(group) for group in data.get("zip", [])],
        exclude=data.get("exclude", []),
        seeds=read_seeds(data.get("seeds", [0])),
        space=dotted(data.get("space", {})),
        metric=data["metric"],
        goal=data["goal"],
    )


def expand(sweep: Sweep) -> list[Planned]:
    """Return the runs of a sweep in their order: the first seed of all variants, then the next; all are checked."""
    check_asked(sweep)
    variants = [_unchecked(sweep, settings, sweep.seeds[0]) for settings in _combinations(sweep)]
    runs = [of_seed(variant, seed) for seed in sweep.seeds for variant in variants]
    excluded = _excluded(sweep)
    left = [run for run in runs if not any(_matches(run, part) for part in excluded)]
    for part in excluded:
        if not any(_matches(run, part) for run in runs):
            raise ConfigError(f"sweep {sweep.name}: exclude {part} matches nothing")
    if not left:
        raise ConfigError(f"sweep {sweep.name} has no runs: everything is excluded")
    by_path: dict[Path, Planned] = {}
    for run in left:
        _check(sweep, run)  # not before: what cannot be is left out by excluding it
        other = by_path.setdefault(run.path, run)
        if other is not run:
            raise ConfigError(f"sweep {sweep.name}: {other.settings} and {run.settings} would both be {run.path}")
    return left


def planned(sweep: Sweep, settings: Mapping[str, Any], seed: int, variant: str = "") -> Planned:
    """Return the run of one variant, with its config checked; its name follows from what it changes."""
    run = _unchecked(sweep, settings, seed, variant)
    _check(sweep, run)
    return run


def _unchecked(sweep: Sweep, settings: Mapping[str, Any], seed: int, variant: str = "") -> Planned:
    own = {"seed": seed, "experiment": sweep.name}
    config = override(sweep.base, nested({**settings, **own}))
    settings = {key: _value(config, key, value) for key, value in settings.items()}
    variant = variant or variant_name(settings)
    config = dataclasses.replace(config, experiment=f"{sweep.name}/{variant}")
    # what a run is given is this config as a file, so that must mean the same: with a dataset the environment is its
    read_back = config_of(override(Experiment(), to_dict(config)), []) if config.dataset else config
    for key in settings:
        if key.startswith("env.") and read_back != config:
            raise ConfigError(f"sweep {sweep.name}: {key} is that of the dataset, it cannot be swept")
    return Planned(variant, seed, settings, read_back)


def _check(sweep: Sweep, run: Planned) -> None:
    try:
        run.config.check()
        for name in run.config.trackers:
            trackers.path_of(name)
    except ConfigError as error:
        raise ConfigError(f"sweep {sweep.name}, {run.variant}: {error}") from None


def of_seed(run: Planned, seed: int) -> Planned:
    """Return the same variant with another seed."""
    return run._replace(seed=seed, config=dataclasses.replace(run.config, seed=seed))


def check_existing(run: Planned) -> None:
    """Refuse a run that was begun with another config: it would be neither the old one nor the new one."""
    if not is_there(run.path / "config.yaml"):
        return
    there = RunDir.open(run.path, check_names=False).config
    for key, old, new in differences(there, run.config):
        shrunk = key == "steps" and new < old
        if shrunk or key not in resource_keys(run.config):
            raise ConfigError(f"{run.path} has {key} {old!r}, the sweep says {new!r}: give it another --name")


def differences(a: Experiment, b: Experiment) -> list[tuple[str, Any, Any]]:
    """Return the keys in which two configs differ, with both values."""
    flat_a, flat_b = flatten(to_dict(a)), flatten(to_dict(b))
    return [
        (key, flat_a.get(key), flat_b.get(key)) for key in {**flat_a, **flat_b} if flat_a.get(key) != flat_b.get(key)
    ]


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested sections, in which keys may be dotted too."""
    data: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = str(key).split(".")
        inner = data
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"config key '{key}' is given twice")
        inner[last] = _merged(inner.get(last), nested(value) if isinstance(value, Mapping) else value)
    return data


def _merged(old: Any, new: Any) -> Any:
    """Return a section with another over it; anything else is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def dotted(keys: Mapping[Any, Any], values: Collection[str] = (), where: str = "") -> dict[str, Any]:
    """Return nested sections as dotted keys; a range is a value, and so is what ``values`` names."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        name = spelled(f"{where}{key}")
        is_section = isinstance(value, Mapping) and value and name not in values and not {"low", "high"} & set(value)
        for inner, leaf in (dotted(value, values, f"{name}.") if is_section else {name: value}).items():
            if inner in found:
                raise ConfigError(f"config key '{inner}' is given twice")
            found[inner] = leaf
    return found


def spelled(key: Any) -> str:
    """Return a config key as files spell it; one that a sweep sets itself is refused."""
    name = str(key).replace("-", "_")
    if name in _OWN:
        raise ConfigError(f"'{name}' is set by the sweep: use {_OWN[name]}")
    return name


def is_text(config: Experiment, key: str) -> bool:
    """Say whether a config key takes words; no where there is no such key."""
    *sections, name = key.split(".")
    section: Any = config
    for part in sections:
        section = getattr(section, part, None)
    if not dataclasses.is_dataclass(section):
        return False
    return _takes_text(typing.get_type_hints(type(section)).get(name))


def _takes_text(hint: Any) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(map(_takes_text, args))
    return all(isinstance(arg, str) for arg in args) if origin is typing.Literal else hint is str


def variant_name(settings: Mapping[str, Any]) -> str:
    """Return a short name of what a variant changes, path-safe; the environment is a directory of its own."""
    named = {key: value for key, value in settings.items() if key != ENV}
    if not named:
        return UNCHANGED
    parts = [f"{short}={_text(value)}" for short, value in zip(_short(list(named)), named.values(), strict=True)]
    name = re.sub(r"[^\w.+=,-]+", "-", ",".join(parts))
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 9]}-{_digest(named)}"


def _config(base: Any, settings: Mapping[str, Any], path: Path) -> Experiment:
    for key, hint in _IN_VAIN.items():
        if key in settings or (isinstance(base, dict) and key in base):
            raise ConfigError(f"{path}: '{key}' is set by the sweep: use {hint}")
    return override(_base(base, path), nested(settings))


def _base(base: Any, path: Path) -> Experiment:
    if base is None:
        return Experiment()
    if isinstance(base, dict):
        return override(Experiment(), nested(base))
    if not isinstance(base, str):
        raise ConfigError(f"{path}: 'base' must be a recipe, a config file or config keys, not {base!r}")
    if base.endswith((".yaml", ".yml", ".json")):
        return base_config(None, path.parent / base, None)
    return base_config(base, None, None)


def _axes(axes: Mapping[Any, Any]) -> dict[str, list[Any]]:
    found = dotted(axes)
    for key, values in found.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"axis '{key}' must be a list of values, not {values!r}")
    return found


def read_seeds(seeds: Any) -> tuple[int, ...]:
    """Return the seeds that are asked for, as a number of them or one by one."""
    if type(seeds) is int and seeds > 0:
        return tuple(range(seeds))
    if isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds):
        return tuple(seeds)
    raise ConfigError(f"'seeds' must be a number of seeds or a list of them, none below 0, not {seeds!r}")


def check_asked(sweep: Sweep) -> None:
    """Refuse what contradicts itself before it is known what the keys mean, in a sweep and in a search."""
    if not re.fullmatch(r"[\w+-][\w.+-]*", sweep.name):
        raise ConfigError(f"the name of a sweep must be a plain word, not {sweep.name!r}")
    if len(set(sweep.seeds)) < len(sweep.seeds):
        raise ConfigError(f"sweep {sweep.name}: a seed is given twice: {list(sweep.seeds)}")
    keys = [*_swept(sweep), *sweep.space]
    for key in keys:
        if key == "seed" or keys.count(key) > 1:
            why = "use seeds" if key == "seed" else "it is given twice"
            raise ConfigError(f"sweep {sweep.name}: '{key}' is no axis: {why}")
    for group in sweep.zips:
        if len({len(values) for values in group.values()}) > 1:
            lengths = ", ".join(f"{key} {len(values)}" for key, values in group.items())
            raise ConfigError(f"sweep {sweep.name}: keys of a zip group need equally many values: {lengths}")
    for part in _excluded(sweep):
        for key in part:
            if key not in (*_swept(sweep), "seed"):
                raise ConfigError(f"sweep {sweep.name}: exclude: '{key}' is not swept{nearest(key, _swept(sweep))}")


def _swept(sweep: Sweep) -> list[str]:
    return [*sweep.axes, *(key for group in sweep.zips for key in group)]


def _excluded(sweep: Sweep) -> list[dict[str, Any]]:
    """Return what is left out, by the keys that are swept: those of a section, or the section where that is an axis."""
    return [dotted(part, _swept(sweep)) for part in sweep.exclude]


def _combinations(sweep: Sweep) -> list[dict[str, Any]]:
    """Return what each variant changes: the product of the axes and of the zip groups, the last one fastest."""
    factors = [[{key: value} for value in values] for key, values in sweep.axes.items()]
    factors += [[dict(zip(group, row, strict=True)) for row in zip(*group.values(), strict=True)]
                for group in sweep.zips if group]  # fmt: skip
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*factors)]


def _matches(run: Planned, part: Mapping[str, Any]) -> bool:
    has = {**run.settings, "seed": run.seed}
    return all(_same(has[key], value) for key, value in part.items())


def _same(a: Any, b: Any) -> bool:
    """Compare values as a config understands them: YAML reads 3e-4 as text, and a tuple as a list."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, str):
        try:
            return a == float(b)
        except ValueError:
            return False
    return bool(a == b)


def _value(config: Experiment, key: str, given: Any) -> Any:
    """Return a value as the config has it, so that 3e-4 and 0.0003 have one name."""
    value: Any = config
    for name in key.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    if dataclasses.is_dataclass(value):
        return given
    return list(value) if isinstance(value, tuple) else value


def _short(keys: list[str]) -> list[str]:
    """Return the last words of keys, as many as tell them apart."""
    shortened = []
    for key in keys:
        words = key.split(".")
        for count in range(1, len(words) + 1):
            last = ".".join(words[-count:])
            if sum(other == last or other.endswith(f".{last}") for other in keys) == 1:
                break
        shortened.append(last)
    return shortened


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        name = str(value.get("name", ""))
        return name if set(value) == {"name"} else f"{name}-{_digest(value)}".lstrip("-")
    if isinstance(value, list):
        return "x".join(map(_text, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]
