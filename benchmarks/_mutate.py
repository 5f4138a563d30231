"""Mutations of files that other people may have written, with checksums made right again."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

DEEP = "[" * 50_000 + "]" * 50_000
RAW = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400, DEEP, '"\\ud800"', "-0", "1e-320")
"""JSON texts that json.dumps does not write, or not from plain values."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 65536, 1 << 31, 1 << 40, (1 << 53) + 1, 1 << 62, 1 << 63, 1 << 70,
    -(1 << 63), 0.5, 1e300, -1e308, "", "x", "../../victim/kept", "/dev/zero", "\x1b[31mred\x07", "\x00", "a\nb",
    "é" * 5000, "<f4", "|O", "O", "<M8[ns]", "|V8", "<U9", "<f99", "f4,f4", "gym/stranger:Env-v0", "stranger:Env",
    "stranger:hook", [], {}, [[]], [None], [1], [0] * 9, [1 << 40] * 3, [2] * 3, [["a", "<f4", [1 << 40]]],
    [["a/b", "<f4", [1]]], {"a": {}},
)  # fmt: skip
HEADER = struct.Struct("<8sII")
MAGIC = b"\x89RLEPI\r\n"


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, overwrite, insert, drop or repeat some bytes."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(max(1, len(content)))
        end = min(len(content), at + rng.choice((1, 2, 4, 8, 64)))
        match rng.randrange(7):
            case 0 if content:
                content[at % len(content)] ^= 1 << rng.randrange(8)
            case 1:
                del content[at:]
            case 2:
                content[at:end] = bytes([rng.choice((0, 255, 127, 128))]) * (end - at)
            case 3:
                content[at:at] = rng.randbytes(rng.choice((1, 3, 16)))
            case 4:
                del content[at:end]
            case 5:
                content[at:at] = content[at:end]
            case _:
                content[at:end] = rng.randbytes(end - at)
    return bytes(content)


def mutate_json(text: str, rng: random.Random) -> str:
    """Change, drop, add or copy something at a random place; texts that hold JSON are entered."""
    data = json.loads(text)
    marks: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [*_places(data)]
        if not places:
            return rng.choice(RAW)
        holder, key = rng.choice(places)
        old = holder[key]
        match rng.randrange(8):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1:
                holder[key] = marker = f"@@{len(marks)}@@"
                marks[f'"{marker}"'] = rng.choice(RAW)
            case 2 if isinstance(holder, list):
                holder.insert(0, copy.deepcopy(old))
            case 3 if isinstance(old, str) and _is_json(old) and old[:1] in ("[", "{"):
                holder[key] = mutate_json(old, rng)
            case 4:
                other, name = rng.choice(places)
                holder[key] = copy.deepcopy(other[name])
            case 5 if isinstance(old, int):
                holder[key] = old + rng.choice((-1, 1, 1 << 20, -(1 << 40)))
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    out = json.dumps(data, separators=(",", ":"))
    for marker, raw in marks.items():
        out = out.replace(marker, raw)
    return out


def _places(data: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield every place; those of long lists only now and then."""
    if depth > 20:
        return
    for key in list(data) if isinstance(data, dict) else range(min(len(data), 8)) if isinstance(data, list) else ():
        yield data, key
        yield from _places(data[key], depth + 1)


def index_lines(path: Path, rng: random.Random) -> None:
    """Change lines of an index, and their checksums with them; sometimes the mark as well."""
    lines = path.read_bytes().splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2:
                kind = rng.choice(("evict", "move", "next", "note", "later", "", 3))
                lines.insert(at, _line(json.dumps({"kind": kind, "ids": [0], "id": 1, "shard": 0, "offset": 3})))
            case _:
                text = lines[at].partition(b" ")[2].decode(errors="replace")
                lines[at] = _line(mutate_json(text, rng)) if _is_json(text) else lines[at]
        if not lines:
            break
    path.write_bytes(b"".join(lines))
    if rng.random() < 0.6:
        fix_mark(path)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _line(text: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return b"%08x %s\n" % (zlib.crc32(data), data)


def fix_mark(index: Path) -> None:
    """Let the mark fit an index again, or take it away."""
    data = index.read_bytes()
    index.with_name("index.mark").write_text(json.dumps({"bytes": len(data), "crc32": zlib.crc32(data)}))


def labels(path: Path, rng: random.Random) -> None:
    """Change what labels in a shard say, and their checksums with them."""
    data = path.read_bytes()
    places = [at for at in range(len(data)) if data.startswith(MAGIC, at)]
    for at in sorted(rng.sample(places, min(len(places), rng.choice((1, 2)))), reverse=True):
        size = HEADER.unpack_from(data, at)[1]
        old = data[at : at + HEADER.size + size]
        text = mutate_json(old[HEADER.size :].decode(), rng).encode(errors="surrogatepass")
        data = data[:at] + HEADER.pack(MAGIC, len(text), zlib.crc32(text)) + text + data[at + len(old) :]
    path.write_bytes(data)


def odd(path: Path, rng: random.Random, victim: Path) -> None:
    """Put something that is no regular file in its place."""
    path.unlink()
    match rng.randrange(6):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(victim)
        case 3:
            path.symlink_to("/dev/zero")
        case 4:
            path.symlink_to(path)
        case _:
            with path.open("wb") as file:
                file.truncate(rng.choice((0, 1 << 20, 20 << 30)))


def npz(path: Path, rng: random.Random) -> None:
    """Change arrays, their headers, or how they are packed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    match rng.randrange(5):
        case 0:
            members[name] = _array_bytes(odd_array(np.load(io.BytesIO(members[name])), rng))
        case 1:
            members[name] = _npy_header(members[name], rng)
        case 2:
            members[name] = mutate_bytes(members[name], rng)
        case 3 if "metadata" in name:
            texts = [
                mutate_json(text.decode(), rng).encode(errors="replace") for text in np.load(io.BytesIO(members[name]))
            ]
            members[name] = _array_bytes(np.array([text[:100_000] for text in texts]))
        case _:
            members[rng.choice((f"x{name}", "../../victim/kept.npy", "infos/values.npy"))] = members.pop(name)
    how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(path, "w", how if rng.random() < 0.2 else zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    if rng.random() < 0.2:  # the directory of the archive lies
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))


def _array_bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npy_header(data: bytes, rng: random.Random) -> bytes:
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size].decode()
    changes = (
        ("'descr': '", "'descr': '>"), ("(", "(-"), ("(", f"({1 << 40}, "), ("(", f"({1 << 70}, "), (")", ""),
        ("False", "True"), ("{", "[" * 4000), ("'shape'", "'Shape'"), ("<f4", "|O"), ("<f4", "<M8[s]"),
        (",)", ", 0)"),
    )  # fmt: skip
    header = header.replace(*rng.choice(changes), 1).rstrip() + "\n"
    return data[:8] + len(header).to_bytes(2, "little") + header.encode() + data[10 + size :]


class Stranger:
    """What a pickle would do."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return __import__, ("stranger",)


def odd_array(array: Any, rng: random.Random) -> Any:
    """Return another array in place of one."""
    changes: tuple[Callable[[], Any], ...] = (
        lambda: array[:-1], lambda: array[:0], lambda: np.concatenate([array, array]), lambda: array[..., None],
        lambda: np.array(3.0), lambda: array.astype("S7"), lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, np.inf, np.float32), lambda: np.full(array.shape, 1e300),
        lambda: np.full(array.shape, 2), lambda: array.astype("U9"),
        lambda: np.zeros(array.shape, np.complex64), lambda: np.zeros(array.shape, "M8[s]"),
        lambda: np.zeros(array.shape, [("a", "f4")]), lambda: np.full(array.shape, 1 << 62),
        lambda: np.full(array.shape, Stranger(), object), lambda: np.full(array.shape, -1, np.int8),
    )  # fmt: skip
    try:
        return rng.choice(changes)()
    except (ValueError, TypeError):
        return np.zeros(0)


def hdf5(path: Path, rng: random.Random, victim: Path) -> None:
    """Change arrays, attributes and links of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        node = file[name]
        if node.attrs and rng.random() < 0.5:
            _attribute(node.attrs, rng)
        elif isinstance(node, h5py.Dataset) and node.dtype.kind == "S" and rng.random() < 0.7:
            texts = [mutate_json(text.decode(), rng).encode(errors="replace")[:60_000] for text in node[()]]
            del file[name]
            file[name] = np.array(texts)
        else:
            array = node[()] if isinstance(node, h5py.Dataset) else np.zeros(3)
            del file[name]
            _replace(file, name, array, rng, victim)


def _attribute(attrs: Any, rng: random.Random) -> None:
    key = rng.choice(list(attrs))
    value = attrs[key]
    if isinstance(value, str) and _is_json(value) and rng.random() < 0.7:
        attrs[key] = mutate_json(value, rng).replace("\x00", "")[:60_000]
    elif rng.random() < 0.2:
        del attrs[key]
    else:
        attrs[key] = rng.choice((-1, 1 << 62, 1.5, float("nan"), "", "x", b"\xff", [1, 2], np.zeros(0)))


def _replace(file: h5py.File, name: str, array: Any, rng: random.Random, victim: Path) -> None:
    match rng.randrange(9):
        case 0:
            file[name] = h5py.ExternalLink(str(victim), "/secret")
        case 1:
            file[name] = h5py.SoftLink(rng.choice(("/", f"/{name}", "/nowhere", "/observations")))
        case 2:
            file.create_dataset(name, array.shape, array.dtype, external=[(str(victim), 0, 1 << 20)])
        case 3:
            layout = h5py.VirtualLayout(array.shape, array.dtype)
            layout[...] = h5py.VirtualSource(str(victim), "secret", array.shape)
            file.create_virtual_dataset(name, layout)
        case 4:
            shape = rng.choice(((1 << 40,), (1 << 28, *array.shape[1:]), (1 << 20, 1 << 20)))
            file.create_dataset(name, shape, array.dtype, chunks=(1,) * len(shape), fillvalue=None)
        case 5:
            file.create_dataset(name, array.shape, h5py.string_dtype())
        case 6:
            file.create_dataset(name, dtype=array.dtype, data=h5py.Empty(array.dtype))
        case 7:
            file.create_group(name)
        case _:
            new = odd_array(array, rng)
            if new.dtype.kind not in "OUM":
                file[name] = new
