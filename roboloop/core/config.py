"""Config is data: frozen dataclasses filled from a file or the command line, unknown keys and wrong types refused."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from roboloop.core.errors import ConfigError, DataError, nearest
from roboloop.core.files import parse_json, read_bytes

_MOST_BYTES = 4 << 20
_MOST_VALUES = 100_000
_MOST_DEPTH = 50
_LONGEST = 200
"""Characters of a value in a message."""
_MOST_INT = 2**53
"""Every reader of JSON, browsers too, has the same integers up to here."""
INFINITE: dict[str, bool] = {"infinite": True}
"""Metadata of a field that may be infinite."""
RESOURCE: dict[str, bool] = {"resource": True}
"""Metadata of a field, or of a whole section, that a resumed run may be given anew: it changes no step of training."""
BY_NAME, NAMED_BY, KINDS = "by_name", "named_by", "kinds"
"""Metadata of a section of which there are several kinds: ``find(name, section)`` returns that kind's defaults; the key
in the section that holds the name (``name`` if it does not say); ``kinds()`` yields name and defaults of each."""
SYNONYMS = {
    "learning-rate": "lr", "step-size": "lr", "discount": "gamma", "lambda": "gae-lambda", "polyak": "tau",
    "ent-coef": "alpha", "entropy-coefficient": "entropy-coef", "temperature": "alpha", "layers": "hidden",
    "num-workers": "workers", "total-timesteps": "steps", "buffer-size": "capacity", "batch": "batch-size",
    "tensorboard": "trackers", "wandb": "trackers", "report-to": "trackers",
}  # fmt: skip
"""Names that other systems, or earlier versions of ours, have for our keys; as flags spell them."""
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML reads as text, such as 3e-4."""
_SWITCH_WORDS = {False: ("off", "no"), True: ("on", "yes")}

T = TypeVar("T")


class UnknownKey(ConfigError):
    """A key that a section does not have."""

    def __init__(self, message: str, key: str, has_kinds: bool = False) -> None:
        super().__init__(message)
        self.key, self.has_kinds = key, has_kinds


def tag_flags(config: Any) -> list[str]:
    """Return the dotted keys that say of which kind a section is."""
    return [f"{f.name}.{f.metadata.get(NAMED_BY, 'name')}" for f in dataclasses.fields(config) if BY_NAME in f.metadata]


def to_dict(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain data that ``override`` accepts again."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return {k: plain(v) for k, v in dataclasses.asdict(config).items()}


def by_key(config: Any) -> dict[str, Any]:
    """Return a dataclass as plain data by dotted key; a key whose value is a mapping of its own is one key."""

    def flat(section: Any, data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for field in dataclasses.fields(section):
            value, plain, key = getattr(section, field.name), data[field.name], f"{prefix}{field.name}"
            if dataclasses.is_dataclass(value):
                yield from flat(value, plain, f"{key}.")
            else:
                yield key, plain

    return dict(flat(config, to_dict(config), ""))


def override(config: T, data: Mapping[str, Any], where: str = "") -> T:
    """Return a copy of a dataclass with the given keys replaced; nested mappings reach into nested dataclasses."""
    hints = typing.get_type_hints(type(config))
    fields = {f.name: f for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    changes: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{where}{key}"
        if key not in fields:
            raise UnknownKey(f"unknown config key '{path}'{hint_for(path, paths(config, where))}", path)
        current = getattr(config, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                known = [f"{where}{name}" for name in fields] + paths(current, f"{path}.")
                hint = _did_you_mean(_meant(path, known)) if isinstance(value, str | bool) else ""
                raise ConfigError(f"config key '{path}' is a section, not a value: {_shown(value)}{hint}")
            kind = _named(current, fields[key].metadata, hints[key], value, path)
            with kinds_hint(fields[key].metadata, kind, f"{path}."):
                changes[key] = override(kind, value, f"{path}.")
        else:
            new = _convert(value, hints[key], path)
            changes[key] = {**current, **new} if isinstance(current, dict) else new
    changed: T = dataclasses.replace(config, **changes)  # type: ignore[type-var]
    if not where:
        check_values(changed)
    return changed


def check_values(config: Any, where: str = "") -> None:
    """Refuse numbers that are none, infinite or beyond all use, and texts that no file system and no log takes."""
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{where}{field.name}"
        for each in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(each):
                check_values(each, f"{path}.")
            else:
                _check_value(each, path, bool(field.metadata.get("infinite")))


def _check_value(value: Any, path: str, may_be_infinite: bool) -> None:
    if isinstance(value, int) and abs(value) > _MOST_INT:
        raise ConfigError(f"config key '{path}' must lie between -{_MOST_INT} and {_MOST_INT}, not {_shown(value)}")
    if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and not may_be_infinite)):
        raise ConfigError(f"config key '{path}' must be a finite number, not {value}")
    if isinstance(value, str) and not _is_plain(value):
        raise ConfigError(f"config key '{path}' must be text without control characters, not {_shown(value)}")


def _is_plain(text: str) -> bool:
    return not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in text)


def _shown(value: Any) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, int) and abs(value) > 10**_LONGEST:  # as text it may be longer than Python allows
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@contextlib.contextmanager
def kinds_hint(about: Mapping[str, Any], section: Any, where: str) -> Iterator[None]:
    """Say of an unknown key of a section which other kinds of that section have it."""
    try:
        yield
    except UnknownKey as error:
        key = error.key.replace("-", "_")
        if KINDS not in about or not key.startswith(where) or error.has_kinds:
            raise
        first = key.removeprefix(where).partition(".")[0]
        others = [name for name, kind in about[KINDS]() if any(f.name == first for f in dataclasses.fields(kind))]
        if not others or hasattr(section, first):
            raise
        mine = getattr(section, about.get(NAMED_BY, "name"))
        raise UnknownKey(
            f"{error}; {mine} has no {where}{first}, it is for {', '.join(others)}", error.key, True
        ) from None


def _named(current: Any, about: Mapping[str, Any], hint: Any, data: Mapping[str, Any], path: str) -> Any:
    """Return the section that ``data`` asks for by its name, with its defaults, where there are several kinds."""
    find, tag = about.get(BY_NAME), about.get(NAMED_BY, "name")
    kinds = {kind.name: kind for kind in typing.get_args(hint) if hasattr(kind, "name")}
    name = data.get(tag, getattr(current, tag, None))
    if not (kinds or find) or name == getattr(current, tag):
        return current
    if not isinstance(name, str):
        raise ConfigError(f"config key '{path}.{tag}' must be a name, not {_shown(name)}")
    if find is not None:
        return find(name, current)
    if name not in kinds:
        known = ", ".join(kinds)
        raise ConfigError(f"config key '{path}.name' must be one of {known}, not {_shown(name)}{nearest(name, kinds)}")
    return kinds[name]()


def paths(config: Any, where: str = "") -> list[str]:
    """Return the dotted keys of a config and of its sections."""
    found: list[str] = []
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{where}{field.name}"
        found += paths(value, f"{path}.") if dataclasses.is_dataclass(value) else [path]
    return found


def hint_for(name: str, known: Sequence[str]) -> str:
    """Return which of the known dotted names may have been meant; flags have their dashes in front."""
    return _did_you_mean(_meant(name, known)) or nearest(name, known)


def _did_you_mean(names: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(map(repr, names[:4]))}?" if names else ""


def _meant(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that say of which kind a section is, or that end as this one does, here or in other systems."""
    if tags := [each for each in known if each in (f"{name}.name", f"{name}.id")]:
        return tags
    known = [each for each in known if each != name]  # a section that was given a value
    dashed = {each: each.replace("_", "-") for each in known}
    section, dot, last = name.replace("_", "-").rpartition(".")
    front = "" if dot else "-" * (len(last) - len(last.lstrip("-")))
    last = last.removeprefix(front).removeprefix("no-")
    if whole := [each for each in known if dashed[each] == f"{section}{dot}{front}{last}"]:
        return whole
    here = {dashed[each].rpartition(".")[2]: each for each in known if dashed[each].rpartition(".")[0] == section}
    if near := difflib.get_close_matches(f"{front}{last}", here, n=1, cutoff=0.85):
        return [here[near[0]]]  # a slip of the finger
    word = SYNONYMS.get(last, last)
    found = [each for each in known if dashed[each].startswith(section + dot) and _ends_with(dashed[each], word)]
    return sorted(found, key=lambda each: not each.removeprefix(front).startswith("algo."))


def _ends_with(name: str, word: str) -> bool:
    last = name.rpartition(".")[2].lstrip("-")
    return last == word or last.endswith(f"-{word}")


def _convert(value: Any, hint: Any, path: str) -> Any:
    """Check one value against its annotation; the only conversions are int -> float, list -> tuple, '3e-4' -> float."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return _convert(value, next(a for a in args if a is not type(None)), path)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(v, args[0], path) for v in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return override(hint(), value, f"{path}.")
    if origin is dict and isinstance(value, Mapping):
        return _free(value, path, 0)
    if origin is typing.Literal:
        if isinstance(value, bool):  # YAML reads a plain off as False, and on as True
            value = next((word for word in _SWITCH_WORDS[value] if word in args), value)
        if value in args:
            return value
        raise ConfigError(f"config key '{path}' must be one of {', '.join(map(repr, args))}, not {_shown(value)}")
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML reads 3e-4 as text
            return _float(value, path)
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    elif isinstance(hint, type) and type(value) is hint:
        return value
    raise ConfigError(f"config key '{path}' must be {_describe(hint, value)}, not {_shown(value)}")


def _free(value: Any, path: str, depth: int) -> Any:
    """Return a value of no fixed type, if it is plain data."""
    if depth > _MOST_DEPTH:
        raise ConfigError(f"config key '{path}' is nested more than {_MOST_DEPTH} deep")
    if isinstance(value, Mapping):
        return {_free_name(key, path): _free(part, f"{path}.{key}", depth + 1) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_free(part, path, depth + 1) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, str) and _EXPONENT.fullmatch(value):
            value = float(value)
        _check_value(value, path, False)
        return value
    raise ConfigError(f"config key '{path}' must be a number, a text, a list or a section, not {_shown(value)}")


def _free_name(name: Any, path: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"config key '{path}' has a name that is none: {_shown(name)}")
    return name


def _float(value: int | float | str, path: str) -> float:
    try:
        return float(value)
    except OverflowError:  # an int has no end, a float has
        raise ConfigError(f"config key '{path}' is too large: a float ends at {sys.float_info.max:.2g}") from None


def _describe(hint: Any, value: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return f"a list such as [{_shown(value)}]"
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint)


def read_file(path: Path, follow: bool = True) -> dict[str, Any]:
    """Read a YAML or JSON mapping; ``follow`` links where the user named the file, not where it came with a run."""
    if not path.exists():
        siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        raise ConfigError(f"config file {path} does not exist{nearest(path.name, siblings)}")
    try:
        text = read_bytes(path, _MOST_BYTES, follow).decode()
        data = parse_json(text.encode(), str(path)) if path.suffix == ".json" else parse_yaml(text)
    except (DataError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}") from None
    except ValueError as error:
        raise ConfigError(f"config file {path} is not valid: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"config file {path} must hold keys and values, not {type(data).__name__}")
    return data


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text; a ValueError where it is none, or grows beyond all bounds by its aliases."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError as error:  # of characters that no YAML has
        raise ValueError(str(error)) from None
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, {}, 0)
        return loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, TypeError) as error:  # the last of keys that are lists
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def _check_size(node: Any, known: dict[int, int], depth: int) -> int:
    """Return how many values a YAML node stands for when its aliases are written out; too many are a ValueError."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"values are nested more than {_MOST_DEPTH} deep")  # or hold themselves
    if id(node) not in known:
        inner = node.value if isinstance(node.value, list) else []
        parts = [part for each in inner for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_check_size(part, known, depth + 1) for part in parts)
    if known[id(node)] > _MOST_VALUES:
        raise ValueError(f"aliases stand for more than {_MOST_VALUES:,} values")
    return known[id(node)]


def resource_keys(config: Any, prefix: str = "", inherited: bool = False) -> set[str]:
    """Return the dotted keys that a resumed run may be given anew, as their fields say."""
    found: set[str] = set()
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), f"{prefix}{field.name}"
        may_change = inherited or bool(field.metadata.get("resource"))
        if dataclasses.is_dataclass(value):
            found |= resource_keys(value, f"{key}.", may_change)
        elif may_change:
            found.add(key)
    return found


def flatten(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return nested keys as one level, joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat
