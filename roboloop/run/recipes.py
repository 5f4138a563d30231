"""Named recipes: config files that ship with the package, each with the result it is known to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roboloop.core.config import read_file
from roboloop.core.errors import ConfigError, nearest
from roboloop.core.options import Options

_DIRECTORY = Path(__file__).parent.parent / "recipes"


def names() -> list[str]:
    """List the recipes."""
    return sorted(p.stem for p in _DIRECTORY.glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    """Return a recipe's keys."""
    if name not in names():
        raise ConfigError(f"unknown recipe {name!r}{nearest(name, names())}; see: roboloop recipes")
    return read_file(_DIRECTORY / f"{name}.yaml")


def show(args: list[str]) -> int:
    """List recipes with their first line, or print one whole."""
    options = Options(prog="roboloop recipes", allow_abbrev=False)
    options.add_argument("name", nargs="?")
    known = options.parse_args(args)
    if known.name:
        load(known.name)
        print((_DIRECTORY / f"{known.name}.yaml").read_text(), end="")
        return 0
    width = max(map(len, names()))
    for name in names():
        first = (_DIRECTORY / f"{name}.yaml").read_text().splitlines()[0]
        print(f"{name:<{width}}  {first.removeprefix('# ')}")
    return 0
