"""Bytes per step and speed of lossless codecs on real observations: two Doom tasks and a state task, random actions.

Chunks of 32 pictures (or 256 states) are filtered in numpy, compressed alone, and must come back bit for bit. Filters:
``palette`` makes a pixel the number of its colour where there are at most 256, ``green`` subtracts green from red and
blue, ``up`` and ``left`` the neighbour above and to the left, ``time`` the row before, ``hwc`` puts channels last,
``columns`` the numbers of one column together, ``bytes`` all first bytes, all second bytes, ... MB are of the raw
observations, on one thread. Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TASKS = {"doom/basic": 32, "doom/health-gathering-supreme": 32, "metaworld/reach-v3": 256}
PICTURE_FILTERS = [
    "",
    "palette",
    "hwc",
    "time",
    "up",
    "left",
    "green left",
    "green up left",
    "green hwc",
    "green time left",
]
NUMBER_FILTERS = ["", "bytes", "columns bytes", "time bytes", "time columns bytes"]
Pair = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]


def record(env_id: str, frames: int, rows: int) -> list[Any]:
    """Return chunks of observations of whole episodes with random actions, each held for some steps."""
    from roboloop.envs.config import EnvConfig
    from roboloop.envs.registry import make

    env = make(EnvConfig(id=env_id, action_repeat=4 if env_id.startswith("doom") else 1))
    rng, chunks, total, seed = np.random.default_rng(0), [], 0, 0
    low, high = np.array(env.spec.action_low), np.array(env.spec.action_high)
    while total < frames:
        episode, ended = [np.array(env.reset(seed))], False
        while not ended and total + len(episode) < frames:
            action = rng.uniform(low, high)
            action = np.floor(rng.uniform(low, high + 1)) if env.spec.action_choices else action
            obs, _, terminated, truncated, _ = env.step(action.astype(np.float32))
            episode.append(np.array(obs))
            ended = terminated or truncated
        total, seed = total + len(episode), seed + 1
        stacked = np.stack(episode)
        chunks += [stacked[i : i + rows] for i in range(0, len(stacked), rows)]
    env.close()
    return chunks


def compressors() -> dict[str, Pair]:
    """Return what is installed."""
    found: dict[str, Pair] = {f"zlib-{n}": (lambda d, n=n: zlib.compress(d, n), zlib.decompress) for n in (1, 6)}  # type: ignore[misc]
    for name, make in (("zstandard", _zstd), ("lz4.frame", _lz4), ("blosc2", _blosc)):
        try:
            found |= make(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    return found


def _zstd(zstandard: Any) -> dict[str, Pair]:
    decode = zstandard.ZstdDecompressor().decompress
    return {f"zstd-{n}": (zstandard.ZstdCompressor(level=n).compress, decode) for n in (1, 3, 9)}


def _lz4(frame: Any) -> dict[str, Pair]:
    levels = {"lz4": 0, "lz4-hc9": 9}
    return {
        name: (lambda d, n=n: frame.compress(d, compression_level=n), frame.decompress) for name, n in levels.items()
    }  # type: ignore[misc]


def _blosc(blosc2: Any) -> dict[str, Pair]:
    pairs: dict[str, Pair] = {}
    for how in ("SHUFFLE", "BITSHUFFLE"):
        for codec, level in (("LZ4", 5), ("ZSTD", 3)):
            options = {"codec": getattr(blosc2.Codec, codec), "clevel": level, "filters": [getattr(blosc2.Filter, how)]}
            options |= {"typesize": 4, "nthreads": 1}
            pairs[f"blosc2-{codec.lower()}-{how.lower()}"] = (
                lambda d, o=options: blosc2.compress2(d, **o),  # type: ignore[misc]
                blosc2.decompress2,
            )
    return pairs


def forward(rows: Any, names: list[str]) -> bytes:
    """Apply filters to a chunk, all modulo the width of its numbers."""
    x = rows.view(np.uint32) if rows.dtype == np.float32 else rows
    if names == ["palette"]:
        colours, index = np.unique(x.transpose(0, 2, 3, 1).reshape(-1, 3), axis=0, return_inverse=True)
        return colours.tobytes() + index.astype(np.uint8).tobytes() if len(colours) <= 256 else x.tobytes()
    for name in names:
        y = x.copy()
        match name:
            case "green":
                y[:, [0, 2]] -= x[:, 1:2]
            case "time":
                y[1:] -= x[:-1]
            case "up":
                y[:, :, 1:] -= x[:, :, :-1]
            case "left":
                y[..., 1:] -= x[..., :-1]
            case "hwc":
                y = x.transpose(0, 2, 3, 1)
            case "columns":
                y = np.ascontiguousarray(x.T)
            case "bytes":
                y = x.view(np.uint8).reshape(-1, 4).T
        x = y
    return x.tobytes()


def backward(data: bytes, names: list[str], like: Any) -> Any:
    """Undo ``forward``."""
    x = np.frombuffer(data, np.uint32 if like.dtype == np.float32 else np.uint8).copy()
    shape = like.shape
    if names == ["palette"] and len(x) < like.nbytes:
        n, c, h, w = shape
        colours, index = x[: -n * h * w].reshape(-1, c), x[-n * h * w :]
        return np.ascontiguousarray(colours[index].reshape(n, h, w, c).transpose(0, 3, 1, 2))
    if "bytes" in names:
        x = np.ascontiguousarray(x.view(np.uint8).reshape(4, -1).T).view(np.uint32)
    if "columns" in names:
        x = np.ascontiguousarray(x.reshape(shape[::-1]).T)
    if "hwc" in names:
        n, c, h, w = shape
        x = np.ascontiguousarray(x.reshape(n, h, w, c).transpose(0, 3, 1, 2))
    x = x.reshape(shape)
    if "left" in names:
        reach = 1
        while reach < shape[-1]:  # sums over 2, 4, 8, ... neighbours: whole rows at a time
            x[..., reach:] += x[..., :-reach].copy()
            reach *= 2
    if "up" in names:
        for row in range(1, shape[2]):
            x[:, :, row] += x[:, :, row - 1]
    if "time" in names:
        for row in range(1, shape[0]):
            x[row] += x[row - 1]
    if "green" in names:
        x[:, 0] += x[:, 1]
        x[:, 2] += x[:, 1]
    return x.view(like.dtype)


def measure(chunks: list[Any], names: list[str], pair: Pair, rounds: int) -> dict[str, float]:
    """Return bytes per row and MB/s of both ways, filters included."""
    encode, decode = pair
    encode_s, decode_s = [], []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        stored = [encode(forward(chunk, names)) for chunk in chunks]
        middle_s = time.perf_counter()
        back = [backward(decode(data), names, chunk) for chunk, data in zip(chunks, stored, strict=True)]
        decode_s.append(time.perf_counter() - middle_s)
        encode_s.append(middle_s - begin_s)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(chunks, back, strict=True)), names
    return figures(chunks, stored, encode_s, decode_s)


def measure_ours(chunks: list[Any], rounds: int) -> dict[str, float]:
    """Return the same of the codec that datasets use."""
    from roboloop.data.codec import Codec

    codec, encode_s, decode_s = Codec(), [], []
    out = [np.empty_like(chunk) for chunk in chunks]
    for _ in range(rounds):
        begin_s = time.perf_counter()
        stored = [codec.encode([chunk]) for chunk in chunks]
        middle_s = time.perf_counter()
        for data, array in zip(stored, out, strict=True):
            codec.decode(data, [array])
        decode_s.append(time.perf_counter() - middle_s)
        encode_s.append(middle_s - begin_s)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(chunks, out, strict=True))
    return figures(chunks, stored, encode_s, decode_s)


def figures(chunks: list[Any], stored: list[bytes], encode_s: list[float], decode_s: list[float]) -> dict[str, float]:
    raw, rows = sum(chunk.nbytes for chunk in chunks), sum(map(len, chunks))
    speed = {"encode_mb_s": raw / min(encode_s) / 1e6, "decode_mb_s": raw / min(decode_s) / 1e6}
    return {"bytes": sum(map(len, stored)) / rows, "raw": raw / rows, **speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = []
    for env_id, rows in TASKS.items():
        chunks = record(env_id, args.frames, rows)
        print(f"\n{env_id}: {args.frames} observations, {chunks[0][0].nbytes} bytes each\n")
        print("| library | filters | bytes/step | encode MB/s | decode MB/s |\n|---|---|---|---|---|")
        combinations = PICTURE_FILTERS if chunks[0].ndim == 4 else NUMBER_FILTERS
        runs = [(name, f, pair) for name, pair in compressors().items() for f in combinations]
        found = [(name, f, measure(chunks, f.split(), pair, args.rounds)) for name, f, pair in runs]
        found.append(("roboloop", "", measure_ours(chunks, args.rounds)))
        for name, f, row in sorted(found, key=lambda r: r[2]["bytes"]):
            results.append({"env": env_id, "library": name, "filters": f, **row})
            numbers = f"{row['bytes']:.0f} | {row['encode_mb_s']:.0f} | {row['decode_mb_s']:.0f}"
            print(f"| {name} | {f or 'none'} | {numbers} |", flush=True)
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
