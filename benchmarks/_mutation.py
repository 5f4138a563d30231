"""Mutations of what a user may give: YAML texts, command lines, and checkpoints whose digests are right."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load, save

ODD: tuple[Any, ...] = (
    2**63, 2**63 - 1, -(2**63), 2**31, 10**18, 1e18, 1e300, 10**400, -1, 0, 1, 7, 1.5, -0.0, 1e-300, 1e-9, 10**9, 1000,
    float("inf"), float("-inf"), float("nan"), "inf", "nan", "1e400", None, True, False, "", " ", "text", "é😀", "[",
    "\x1b[31mred", "a\nb", "a\0b", "..", "../../x", "/", "x" * 5000, [], [[]], {}, {"a": 1}, [1, "a"], [0], [-1],
    [10**18], [True], [None], ["gym/Pendulum-v1"], "gym/.a:b", "gym/", "nope/x", "gym/Nope-v9", "metaworld/nope",
    "cuda", "on", "off", "gym/Pendulum-v1", "none", "all",
)  # fmt: skip
"""Values that stand in for others."""
WORDS = (
    "9223372036854775808", "1e300", "1e18", "inf", "-inf", "nan", "-1", "0", "1", "7", "1.5", "", " ", "é😀", "a\nb",
    "\x1b[31mred", "\udcff\udcfe", "x" * 5000, "[]", "[1, 2]", "{}", "None", "none", "null", "True", "true", "--", "-",
    "---", "-x", "--help", "=", "a=b", ".", "gym/Pendulum-v1", "gym/", "gym/.a:b", "gym/Nope-v9", "nope/x",
    "cuda", "metaworld/nope", "x", "1_000", "0x10", "١٢", "²", "1e-400", "1e400", "1" * 5000, "~", "$HOME", "%s",
    "*", "\t",
    "best", "last", "all", "1,2", "a:1,b", ":", ",", "reach:-1,x", "1000000000",
)  # fmt: skip
"""Words of a command line; the one with lone surrogates is how Python holds bytes that are no UTF-8."""


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all that can be replaced in nested data: its holder, and the key there."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(entries):
        yield data, key
        yield from places(value)


def mutate_tree(data: Any, rng: random.Random) -> Any:
    """Change nested data at one to three places: another value, none, another's, twice, or under another name."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(places(data))
        if not found:
            break
        holder, key = rng.choice(found)
        way = rng.choice(("odd", "odd", "odd", "drop", "swap", "list", "name"))
        if way == "drop":
            del holder[key]
        elif way == "swap":
            other, name = rng.choice(found)
            holder[key] = json.loads(json.dumps(other[name], default=str)) if _has(other, name) else None
        elif way == "list":
            holder[key] = [holder[key]] * rng.choice((1, 2, 50))
        elif way == "name" and isinstance(holder, dict):
            holder[rng.choice(["x", "", "name", 7, "é", "\x1b"])] = holder.pop(key)
        else:
            holder[key] = rng.choice(ODD)
    return data


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, double or insert bytes."""
    new = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if not new:
            break
        at = rng.randrange(len(new))
        way = rng.randrange(5)
        if way == 0:
            new[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            new[at] = rng.randrange(256)
        elif way == 2:
            del new[at : at + rng.choice((1, 1, 20, 400))]
        elif way == 3:
            new[at:at] = rng.choice((b"\0", b"\xff", b"- ", b": ", b"&a ", b"*a", b"{", b"]", b"!!python/none ", b"\n"))
        else:
            new[at:at] = new[at : at + rng.choice((1, 10, 100))]
    return bytes(new)


def mutate_yaml(text: bytes, rng: random.Random) -> bytes:
    """Change a YAML mapping as data, or as bytes."""
    if rng.random() < 0.25:
        return mutate_bytes(text, rng)
    data = mutate_tree(yaml.safe_load(text), rng)
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True).encode()


def mutate_words(words: list[str], names: list[str], rng: random.Random) -> list[str]:
    """Change a command line at one to three places: other words, fewer, doubled, flags that are there and are not."""
    words = list(words)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(words) + 1)
        way = rng.choice(("word", "word", "drop", "flag", "flag", "flag", "twice", "swap", "unknown", "equals"))
        if way == "word" and at < len(words):
            words[at] = rng.choice(WORDS)
        elif way == "drop" and at < len(words):
            del words[at]
        elif way == "flag":
            words += [f"--{rng.choice(names)}", *rng.choices(WORDS, k=rng.choice((0, 1, 1, 1, 1, 2)))]
        elif way == "twice" and at < len(words):
            words.insert(at, words[at])
        elif way == "swap" and len(words) > 1:
            other = rng.randrange(len(words))
            words[at % len(words)], words[other] = words[other], words[at % len(words)]
        elif way == "equals":
            words.append(f"--{rng.choice(names)}={rng.choice(WORDS)}")
        else:
            words.insert(at, f"--{rng.choice(WORDS)}")
    return words


def mutate_checkpoint(path: Path, rng: random.Random) -> str:
    """Change a checkpoint and make all its digests right again; return what was changed."""
    tensors_path, manifest_path = path / "state.safetensors", path / "manifest.json"
    blob, body = tensors_path.read_bytes(), json.loads(manifest_path.read_bytes())["body"]
    way = rng.choice(("tensor", "tensor", "tensor", "tree", "tree", "tree", "body", "bytes"))
    said = way
    if way == "tensor":
        tensors = load(blob)
        name = rng.choice(sorted(tensors))
        said = f"{name} {_mutate_tensor(tensors, name, rng)}"
        blob = save(tensors)
    elif way == "bytes":
        head = 8 + int.from_bytes(blob[:8], "little")
        blob = mutate_bytes(blob[:head], rng) + blob[head:]
    elif way == "tree":
        mutate_tree(body["tree"], rng)
    else:
        changed = {name: value for name, value in body.items() if name not in ("tree", "files")}
        body |= mutate_tree(changed, rng)
    body["files"] = {"state.safetensors": hashlib.sha256(blob).hexdigest()}
    tensors_path.write_bytes(blob)
    body = json.loads(json.dumps(body, default=str))
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    manifest_path.write_text(json.dumps({"sha256": digest, "body": body}))
    return said


def _mutate_tensor(tensors: dict[str, Any], name: str, rng: random.Random) -> str:
    array = np.array(tensors[name])
    way = rng.choice(("drop", "shape", "type", "rows", "empty", "values", "values", "values", "swap", "scalar"))
    if way == "drop":
        del tensors[name]
        return way
    if way == "shape":
        array = array.reshape(-1)[None] if rng.random() < 0.5 else array.reshape(*array.shape, 1)
    elif way == "type":
        kind = rng.choice(["float64", "float16", "int64", "uint8", "bool", "float32", "int32"])
        with np.errstate(all="ignore"):
            array = array.astype(kind)
    elif way == "rows":
        array = np.concatenate([array, array]) if array.ndim else array
    elif way == "empty":
        array = array[:0] if array.ndim else np.zeros(0, array.dtype)
    elif way == "swap":
        array = np.array(tensors[rng.choice(sorted(tensors))])
    elif way == "scalar":
        array = np.zeros((), array.dtype)
    elif array.size:
        kinds = {
            "f": (np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 1e4),
            "i": (-1, 2**31 - 1, 100, -(2**31)),
            "u": (255,),
        }
        value = rng.choice(kinds.get(array.dtype.kind, (True, False)))
        flat, some = array.reshape(-1), rng.choice((1, 1, array.size))
        with np.errstate(all="ignore"):
            flat[rng.sample(range(array.size), some)] = np.array(value).astype(array.dtype)
    tensors[name] = np.ascontiguousarray(array)
    return way
