"""Kinds of damage to one file or folder of a run."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HUGE_BYTES = 20 << 30
DEEP = 200_000
VALUES = ("NaN", "Infinity", "null", "[]", "{}", "9" * 400)


def _flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _cut_at_a_line(path: Path, rng: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: rng.randrange(len(lines))]))


def _text(text: bytes) -> Callable[[Path, random.Random], None]:
    def write(path: Path, rng: random.Random) -> None:
        path.write_bytes(text)

    return write


def _sparse(path: Path, rng: random.Random) -> None:
    os.truncate(path, HUGE_BYTES)


def _value(path: Path, rng: random.Random) -> None:
    """Put something else at a random place of a JSON text."""
    lines = path.read_text().splitlines() if path.suffix != ".json" else [path.read_text()]
    number = rng.randrange(len(lines))
    try:
        data = json.loads(lines[number])
    except ValueError:
        return _flip(path, rng)
    places = list(_places(data))
    if not places:
        return _flip(path, rng)
    holder, key = rng.choice(places)
    holder[key] = "@@@"
    lines[number] = json.dumps(data).replace('"@@@"', rng.choice(VALUES))
    path.write_text("\n".join(lines) + ("\n" if path.suffix != ".json" else ""))
    return None


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield data, key
        yield from _places(value)


def _setting(path: Path, rng: random.Random) -> None:
    """Change one value of a YAML text."""
    lines = path.read_text().splitlines(keepends=True)
    number = rng.choice([n for n, line in enumerate(lines) if ": " in line])
    new = rng.choice([".nan", ".inf", "null", "[]", "{}", "9" * 400, "-1", "text", "7"])
    lines[number] = f"{lines[number].partition(':')[0]}: {new}\n"
    path.write_text("".join(lines))


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
REPLACED: dict[str, Callable[[Path, random.Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "cut at a line": _cut_at_a_line,
    "empty": _text(b""),
    "foreign text": _text("Never gonna give you up\n\x1b[31m\xff".encode("latin-1")),
    "deep JSON": _text(b"[" * DEEP),
    "deep JSON, closed": _text(b'{"step":' * DEEP + b"1" + b"}" * DEEP + b"\n"),
    "JSON null": _text(b"null\n"),
    "JSON []": _text(b"[]\n"),
    "JSON {}": _text(b"{}\n"),
    "huge": _sparse,
    "value": _value,
    "setting": _setting,
    "aliases": _text(BOMB.encode()),
}
"""What is done to the bytes of a file."""
PLACED = ("missing", "FIFO", "directory", "file", "link", "link to others", "dangling link", "link loop", "zeros",
          "other run's")  # fmt: skip
"""What else stands in its place."""
KINDS = (*REPLACED, *PLACED)
BY_CHANCE = ("flip", "cut", "cut at a line", "value", "setting")
_OF_TEXT = ("cut at a line", "deep JSON", "deep JSON, closed", "JSON null", "JSON []", "JSON {}")


def fits(kind: str, path: Path) -> bool:
    """Say whether a kind of damage can be done to this."""
    if path.is_dir():
        return kind in PLACED and kind not in ("directory", "zeros")
    if kind == "file":
        return False
    size, text = path.stat().st_size, path.suffix in (".json", ".jsonl", ".yaml", ".log")
    if kind in ("flip", "cut") and not size:
        return False
    if kind in ("setting", "aliases"):
        return path.name == "config.yaml"
    if kind == "value":
        return path.suffix in (".json", ".jsonl") and size > 0
    return text and size > 0 if kind in _OF_TEXT else True


def damage(path: Path, kind: str, rng: random.Random, other: Path, victim: Path) -> None:
    """Damage a file or a folder; ``other`` is the same of another run, ``victim`` a folder that links may lead to."""
    if kind in REPLACED:
        REPLACED[kind](path, rng)
        return
    (victim / "text").write_text("precious\n")
    (victim / "step-000000000001").mkdir()
    (victim / "step-000000000001" / "text").write_text("precious\n")
    same = victim / path.name
    if kind == "link":
        path.rename(same)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("precious\n")
    elif kind == "other run's" and other.is_dir():
        shutil.copytree(other, path)
    elif kind == "other run's" and other.exists():
        shutil.copy(other, path)
    else:
        targets = {"link": same, "dangling link": victim / "none", "link loop": path, "zeros": Path("/dev/zero")}
        # a folder's victim is a folder
        targets["link to others"] = victim if path.suffix == "" and path.name != "lock" else victim / "text"
        if kind in targets:
            path.symlink_to(targets[kind])
