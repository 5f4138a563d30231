"""Config keys as command-line flags: ``--section.key value``, with help from the fields' own docstrings."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple, TypeVar

from roboloop.core.config import KINDS, UnknownKey, check_values, hint_for, kinds_hint, override, tag_flags
from roboloop.core.errors import ConfigError

T = TypeVar("T")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_NONE = ("none", "null")


class Key(NamedTuple):
    """One config key as a flag."""

    flag: str
    """As it is typed, without the dashes in front."""
    path: tuple[str, ...]
    hint: Any
    value: Any
    about: str
    """The field's docstring."""


def keys_of(config: Any, path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield all keys of a config, section by section."""
    kind: Any = type(config)
    hints, about = typing.get_type_hints(kind), docstrings(kind)
    for field in dataclasses.fields(config):
        value, here = getattr(config, field.name), (*path, field.name)
        if dataclasses.is_dataclass(value):
            yield from keys_of(value, here)
        else:
            yield Key(_spelled(".".join(here)), here, hints[field.name], value, about.get(field.name, ""))


@cache
def docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings that follow the fields of a dataclass, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError):  # defined where there is no source, as in a shell
            continue
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for line, after in itertools.pairwise(lines):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
                text = after.value.value if isinstance(after.value, ast.Constant) else ""
                found[line.target.id] = " ".join(text.split()) if isinstance(text, str) else ""
    return found


def flag_names(config: Any) -> list[str]:
    """List the flags of a config, as the command line spells them."""
    return [key.flag for key in keys_of(config)]


def parse_flags(config: T, flags: Sequence[str], own: Sequence[str] = ()) -> T:
    """Return the config with ``--section.key value`` flags applied; a bad flag is one line.

    ``own`` are the options of the command beside them, which may have been meant.
    """
    given = sorted(_grouped(flags), key=lambda each: not each[0])  # a flag that is wrong says more than a stray word
    config = with_kinds(config, flags)  # they say which keys there are
    known = {key.flag: key for key in keys_of(config)}
    for name, words in given:
        if not name:
            raise ConfigError(f"unexpected word {words[0]!r}: config keys are given as --KEY VALUE")
        if name not in known and (free := _free_key(name, known)):
            key, inner = free
            current: Any = reduce(getattr, key.path, typing.cast("Any", config))
            value = {**current, inner: _plain(_one(name, words))}
            config = override(config, _nested(key.path, value))
            continue
        with _kinds_hints(config):
            key, text = _find(name, words, known, own)
        config = override(config, _nested(key.path, _read(key, text)))
    check_values(config)
    return config


def with_kinds(config: T, flags: Sequence[str]) -> T:
    """Return the config with only those flags applied that say of which kind a section is."""
    tags = tag_flags(config)
    kinds = [(name, words) for name, words in _grouped(flags) if name in tags or name.endswith(".name")]
    for name, words in sorted(kinds, key=lambda given: given[0].count(".")):
        config = override(config, _nested(tuple(name.split(".")), _one(name, words)))
    return config


def _spelled(name: str) -> str:
    return name.replace("_", "-")


def _grouped(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words that follow it."""
    name, words = "", list[str]()  # words before the first flag have no name
    for word in flags:
        if not word.startswith("-") or _is_number(word):
            words.append(word)
            continue
        if not word.startswith("--") or word == "--":
            raise ConfigError(f"unknown option {word}")
        if name or words:
            yield name, words
        flag, equals, value = word[2:].partition("=")
        name, words = _spelled(flag), [value] if equals else []
    if name or words:
        yield name, words


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _find(name: str, words: list[str], known: dict[str, Key], own: Sequence[str]) -> tuple[Key, list[str]]:
    """Return the key that a flag names, and its words; ``--no-KEY`` turns a switch off."""
    if name in known:
        return known[name], words
    section, dot, last = name.rpartition(".")
    switch = f"{section}{dot}{last.removeprefix('no-')}" if last.startswith("no-") else name.removeprefix("no-")
    if switch != name and switch in known and known[switch].hint is bool and not words:
        return known[switch], ["false"]
    raise UnknownKey(f"unknown option --{name}{hint_for(f'--{name}', [*own, *(f'--{flag}' for flag in known)])}", name)


@contextlib.contextmanager
def _kinds_hints(config: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for field in dataclasses.fields(config):
            if KINDS in field.metadata:
                stack.enter_context(kinds_hint(field.metadata, getattr(config, field.name), f"{field.name}."))
        yield


def _free_key(name: str, known: dict[str, Key]) -> tuple[Key, str] | None:
    """Return the mapping that a flag such as ``--env.kwargs.gravity`` reaches into, and the key inside it."""
    for flag, key in known.items():
        if name.startswith(f"{flag}.") and typing.get_origin(key.hint) is dict:
            return key, name.removeprefix(f"{flag}.").replace("-", "_")
    return None


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return typing.cast("dict[str, Any]", value)


def _one(flag: str, words: list[str]) -> str:
    if not words:
        raise ConfigError(f"option --{flag} needs a value")
    if len(words) > 1:
        raise ConfigError(f"unexpected word {words[1]!r}: config keys are given as --KEY VALUE")
    return words[0]


def _read(key: Key, words: list[str]) -> Any:
    """Return the value that words stand for; ``override`` then checks it against the field's type."""
    hints = _options(key.hint)
    many = next((hint for hint in hints if typing.get_origin(hint) is tuple), None)
    if many is not None:
        if type(None) in hints and [w.lower() for w in words] in ([n] for n in _NONE):
            return None
        each = typing.get_args(many)[0]
        return [_scalar(key.flag, word, (each,)) for word in words]
    if hints == (bool,) and not words:
        return True
    return _scalar(key.flag, _one(key.flag, words), hints)


def _scalar(flag: str, word: str, hints: Sequence[Any]) -> Any:
    lower = word.lower()
    if type(None) in hints and lower in _NONE:
        return None
    if bool in hints and lower in (*_TRUE, *_FALSE):
        return lower in _TRUE
    if int in hints or float in hints:
        with contextlib.suppress(ValueError):
            return int(word)
        with contextlib.suppress(ValueError):
            if float in hints or float(word).is_integer():  # 1e6 is a whole number too
                return float(word)
    if int in hints or float in hints or bool in hints:
        wanted = "true or false" if bool in hints else "a whole number" if float not in hints else "a number"
        raise ConfigError(f"option --{flag} must be {wanted}, not {word!r}")
    return word


def _plain(word: str) -> Any:
    """Return a free value as YAML reads it: a number, a switch, a list or a word."""
    import yaml

    try:
        return yaml.safe_load(word)
    except yaml.YAMLError:
        return word


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def describe(config: Any, sections: Sequence[str] | None = None) -> str:
    """Return one line for each key of some sections, or of all: flag, value and the beginning of its docstring.

    Keys outside of all sections belong to the section ``""``.
    """
    width = shutil.get_terminal_size((100, 24)).columns
    lines: list[str] = []
    for key in keys_of(config):
        if sections is not None and (key.path[0] if len(key.path) > 1 else "") not in sections:
            continue
        head = f"  --{key.flag} {_shown(key.value)}"
        room = width - 46
        about = key.about if sections is None else _first_sentence(key.about)
        rest = textwrap.wrap(about, max(30, room)) or [""]
        if sections is not None and len(rest) > 1:
            rest = [f"{rest[0][: max(30, room) - 1]}…"]
        lines.append(f"{head:<45} {rest[0]}".rstrip() if len(head) < 45 else f"{head}\n{'':<45} {rest[0]}".rstrip())
        lines += [f"{'':<45} {line}" for line in rest[1:]]
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "[]"
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
