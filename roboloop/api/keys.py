"""Config keys as Python gives them: nested mappings, dotted names, and values of other libraries."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from roboloop.core.config import flatten, hint_for, override, paths, to_dict
from roboloop.core.errors import ConfigError
from roboloop.run.config import Experiment

Keys = dict[str, Any]


def nested(*given: Mapping[str, Any], where: str = "") -> Keys:
    """Return keys as ``override`` takes them: ``{"algo.lr": 1}`` is ``{"algo": {"lr": 1}}``.

    A key that is given twice, in whatever form, is refused.
    """
    keys: Keys = {}
    for name, value in [item for each in given for item in each.items()]:
        head, _, rest = name.replace("-", "_").partition(".")
        inner = {rest: value} if rest else value
        if isinstance(inner, Mapping):
            new = nested(inner, where=f"{where}{head}.")
            if new:
                keys[head] = _merged(keys.get(head, {}), new, f"{where}{head}")
        elif head in keys:
            raise ConfigError(f"config key '{where}{head}' is given twice")
        else:
            keys[head] = plain(inner)
    return keys


def _merged(old: Any, new: Keys, where: str) -> Keys:
    if not isinstance(old, dict):
        raise ConfigError(f"config key '{where}' is given twice")
    found = dict(old)
    for name, value in new.items():
        if isinstance(value, dict):
            found[name] = _merged(found.get(name, {}), value, f"{where}.{name}")
        elif name in found:
            raise ConfigError(f"config key '{where}.{name}' is given twice")
        else:
            found[name] = value
    return found


def plain(value: Any) -> Any:
    """Return a value without NumPy and without paths."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def applied(config: Experiment, keys: Keys) -> Experiment:
    """Return a config with these keys; a name that is no key is answered with the key that may be meant."""
    known = {field.name for field in dataclasses.fields(config)}
    for name in keys:
        if name not in known:
            raise ConfigError(f"unknown config key {name!r}{hint_for(name, paths(config))}")
    return override(config, keys)


def words_of(keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield all texts among the values: what the user named, and so vouches for."""
    for value in keys.values():
        if isinstance(value, Mapping):
            yield from words_of(value)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each


def flags_of(keys: Keys, prefix: str = "") -> list[str]:
    """Return keys as the command line has them."""
    flags: list[str] = []
    for name, value in flatten(keys).items():
        values = value if isinstance(value, list) else [value]
        flags += [f"--{prefix}{name.replace('_', '-')}", *map(_word, values)]
    return flags


def _word(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def difference(config: Experiment) -> Keys:
    """Return what a config has other than the defaults of its algorithm, by dotted key."""
    default = flatten(to_dict(override(Experiment(), {"algo": {"name": config.algo.name}})))
    own = {key: value for key, value in flatten(to_dict(config)).items() if default.get(key) != value}
    return own if config.algo.name == Experiment().algo.name else {"algo.name": config.algo.name, **own}
