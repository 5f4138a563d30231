"""Mutated datasets, npz, HDF5 and Minari files, and what each verb that reads them makes of that.

dataset   schema, index, mark, labels and shards: bytes, and values with all checksums made right again; every verb
npz       arrays, their headers, the archive; imported
hdf5      arrays, links to other files, objects, sizes that cannot be; imported
minari    metadata, spaces, environments that name code, and the HDF5 file; imported

Each case runs in a forked process with limits of time and memory. A case fails by a traceback, an exit code that is not
documented, no word, a hang, or a change of any file that is not its own: code that a file names would make one. There
is no import of LeRobot's layout; a mutated dataset is exported to it.

    python benchmarks/dataset_fuzz.py --cases 1000
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import _mutate as mutate
import h5py
import numpy as np
from corruption import CODES, Outcome, forked, main

from roboloop.core.types import EnvSpec
from roboloop.data.episodes import Episode, Schema, facts_of
from roboloop.data.store import StoreWriter

KINDS = ("dataset", "npz", "hdf5", "minari")
LIMIT_S = 30.0
LOADED = (
    "roboloop.run.datasets", "roboloop.exchange.flat", "roboloop.exchange.minari", "roboloop.exchange.lerobot",
    "roboloop.track.sheet", "roboloop.run.build", "minari.dataset._storages.hdf5_storage",
)  # fmt: skip
DATASET_VERBS = (
    "info {data}", "info {data} --sheet {out}/sheet.png", "verify {data}", "verify {data}", "repair {data}",
    "repair {data}", "repair {data}", "merge {out}/merged {data} {sound}", "merge {out}/merged {sound} {data}",
    "filter {data} {out}/few --every 2", "filter {data} {out}/few --top-percent 50",
    "export {data} {out}/a.npz --format npz", "export {data} {out}/a.hdf5 --format d4rl-hdf5",
    "export {data} {out}/toy-v0 --format minari", "export {data} {out}/le --format lerobot",
)  # fmt: skip


def make_dataset(path: Path, kind: str, episodes: int) -> None:
    """Write a few small episodes, in several shards."""
    rng = np.random.default_rng(0)
    dtype = np.dtype([("vector", np.float32, (3,)), ("image", np.uint8, (3, 4, 4))])
    shape, dtype = ((3,), np.dtype(np.float32)) if kind == "numbers" else ((), dtype)
    spec = EnvSpec(shape, dtype, (-1.0, -1.0), (1.0, 1.0), 100, {"task": "toy"})
    schema = Schema("gym/Pendulum-v1", spec, Schema.of("", spec).codec, 4, {"env": {"id": "gym/Pendulum-v1"}})
    with StoreWriter(path, schema, shard_bytes=1500) as writer:
        writer.note({"text": "made to be damaged"})
        for number in range(episodes):
            steps = 3 + number
            obs = np.zeros((steps + 1, *shape), dtype)
            obs.view(np.uint8)[...] = rng.integers(0, 60, obs.view(np.uint8).shape)
            floats = [rng.standard_normal(steps).astype(np.float32) for _ in range(4)]
            end = np.arange(steps) == steps - 1
            action = rng.uniform(-1, 1, (steps, 2)).astype(np.float32)
            flags = (end & (number % 2 == 0), end & (number % 2 == 1))
            episode = Episode(obs, action, *floats[:2], *flags, *floats[2:], np.full(steps, number))
            writer.append(episode, facts_of(episode, 0, number, 10 * number, "toy"))
            if number == 2:
                writer.evict([1])


class Field:
    """The folder of all cases: sound files, what must not be touched, and a place for one mutated copy."""

    def __init__(self, root: Path) -> None:
        self.root, self.sound, self.victim, self.case = root, root / "sound", root / "victim", root / "case"
        self.secret = self.victim / "secret.hdf5"

    def grow(self) -> None:
        """Make the sound files, and a module whose import leaves a trace."""
        self.sound.mkdir()
        (self.root / "back").mkdir()
        self.victim.mkdir()
        (self.victim / "kept").write_text("kept")
        with h5py.File(self.secret, "w") as file:
            file["secret"] = np.arange(100.0)
        code = self.root / "code"
        code.mkdir()
        trace = f"open({str(self.victim / 'ran')!r}, 'w').close()\n"
        (code / "stranger.py").write_text(f"{trace}class Env:\n    pass\ndef hook():\n    pass\n")
        sys.path.insert(0, str(code))
        for kind in ("numbers", "records"):
            make_dataset(self.sound / kind, kind, 5)
            for name, file in (("npz", "a.npz"), ("d4rl-hdf5", "a.hdf5"), ("minari", "toy-v0")):
                out = self.sound / f"{kind}-{name}"
                out.mkdir()
                self.must(f"dataset export {self.sound / kind} {out / file} --format {name}")
                self.must(f"dataset import {out / file} {self.root / 'back' / out.name} --format {name}")

    def must(self, words: str) -> None:
        """Run a verb that has to work."""
        done = forked(self.root, lambda: main(words.split()), LIMIT_S)
        if done.code:
            sys.exit(f"roboloop {words}: exit code {done.code}\n{done.said}")

    def untouched(self) -> str:
        """Return a digest of all that no verb may change."""
        digest = hashlib.sha256()
        for path in sorted(path for folder in (self.sound, self.victim) for path in folder.rglob("*")):
            if path.is_file():
                digest.update(f"{path}{path.stat().st_mtime_ns}".encode() + path.read_bytes())
        return digest.hexdigest()

    def fresh(self) -> Path:
        """Return an empty folder for a case."""
        shutil.rmtree(self.case, ignore_errors=True)
        (self.case / "out").mkdir(parents=True)
        return self.case


def dataset_case(field: Field, rng: random.Random) -> str:
    """Mutate a dataset; return a verb that reads it."""
    kind = rng.choice(("numbers", "records"))
    data = field.case / "data"
    shutil.copytree(field.sound / kind, data)
    files = [data / "schema.json", data / "index.log", data / "index.mark", *(data / "shards").iterdir()]
    match rng.randrange(10):
        case 0 | 1:
            path = rng.choice(files)
            path.write_bytes(mutate.mutate_bytes(path.read_bytes(), rng))
        case 2 | 3:
            schema = data / "schema.json"
            schema.write_bytes(mutate.mutate_json(schema.read_text(), rng).encode(errors="surrogatepass"))
        case 4 | 5 | 6:
            mutate.index_lines(data / "index.log", rng)
        case 7:
            mutate.odd(rng.choice(files), rng, field.victim / "kept")
        case 8:
            (data / "index.mark").write_text(mutate.mutate_json((data / "index.mark").read_text(), rng))
        case _:
            for path in (data / "shards").iterdir():
                mutate.labels(path, rng)
            (data / rng.choice(("index.log", "index.mark", "schema.json"))).unlink()
            (data / "index.log").touch()
    words = rng.choice(DATASET_VERBS).format(data=data, out=field.case / "out", sound=field.sound / kind)
    return f"dataset {words}"


def import_case(field: Field, rng: random.Random, kind: str) -> str:
    """Mutate a file of another format; return its import."""
    name = {"hdf5": "d4rl-hdf5"}.get(kind, kind)
    data = field.case / "data"
    shutil.copytree(field.sound / f"{rng.choice(('numbers', 'records'))}-{name}", data)
    path = next(data.iterdir())
    if kind == "minari":
        _minari(path / "data", field, rng)
    elif rng.random() < 0.35:
        path.write_bytes(mutate.mutate_bytes(path.read_bytes(), rng))
    elif rng.random() < 0.05:
        mutate.odd(path, rng, field.secret)
    elif kind == "npz":
        mutate.npz(path, rng)
    else:
        mutate.hdf5(path, rng, field.secret)
    env = " --env gym/Pendulum-v1" if rng.random() < 0.2 else ""
    return f"dataset import {path} {field.case / 'out' / 'data'} --format {name}{env}"


def _minari(data: Path, field: Field, rng: random.Random) -> None:
    metadata, arrays = data / "metadata.json", data / "main_data.hdf5"
    match rng.randrange(8):
        case 0 | 1 | 2 | 3:
            metadata.write_bytes(mutate.mutate_json(metadata.read_text(), rng).encode(errors="surrogatepass"))
        case 4:
            path = rng.choice((metadata, arrays))
            path.write_bytes(mutate.mutate_bytes(path.read_bytes(), rng))
        case 5 if rng.random() < 0.4:
            mutate.odd(rng.choice((metadata, arrays)), rng, field.secret)
        case _:
            mutate.hdf5(arrays, rng, field.secret)


def judge(outcome: Outcome) -> str:
    """Return what is wrong with an outcome; nothing where it is right."""
    if outcome.code is None:
        return "hang"
    if "Traceback (most recent call last)" in outcome.said:
        return "traceback"
    if outcome.code not in CODES:
        return f"exit code {outcome.code}"
    if "\x1b" in outcome.said or "\x07" in outcome.said:
        return "escape sequence"
    return "" if outcome.said.strip() else "no word"


def run(field: Field, kind: str, seed: int) -> tuple[str, Outcome, str]:
    """Do one case; return its words, how it ended and what is wrong with that."""
    rng = random.Random(f"{kind} {seed}")
    field.fresh()
    words = dataset_case(field, rng) if kind == "dataset" else import_case(field, rng, kind)
    before = field.untouched()
    outcome = forked(field.root, lambda: main(words.split()), LIMIT_S)
    wrong = judge(outcome)
    if field.untouched() != before:
        wrong = "others touched"
        (field.victim / "ran").unlink(missing_ok=True)
    return words, outcome, wrong


def bench(argv: list[str] | None = None) -> int:
    """Run the campaign."""
    options = argparse.ArgumentParser(prog="roboloop bench dataset_fuzz", description=__doc__)
    options.add_argument("--cases", type=int, default=1000, help="of each kind")
    options.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    options.add_argument("--seed", type=int, default=0, help="of the first case")
    options.add_argument("--failures", type=Path, help="write what failing cases said to this file")
    known = options.parse_args(argv)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in known.kinds}
    shm, start_s = Path("/dev/shm"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dataset-fuzz-", dir=shm if os.access(shm, os.W_OK) else None) as folder:
        field = Field(Path(folder))
        os.environ["MINARI_DATASETS_PATH"] = str(field.root / "minari")
        for module in LOADED:
            importlib.import_module(module)
        field.grow()
        for kind in known.kinds:
            for seed in range(known.seed, known.seed + known.cases):
                words, outcome, wrong = run(field, kind, seed)
                counts[kind]["refused" if outcome.code else "done"] += 1
                if wrong:
                    counts[kind]["failed"] += 1
                    said = re.sub(r"\s+", " ", outcome.said)[-200:]
                    print(f"{wrong}: {kind} seed {seed}: {words.replace(folder, '')}: {said!r}", flush=True)
                    if known.failures:
                        with known.failures.open("a") as file:
                            file.write(f"### {wrong}: {kind} seed {seed}: {words}\n{outcome.said}\n")
            about = counts[kind]
            print(f"{kind:8} {known.cases} cases: {about['done']} exit 0, {about['refused']} refused, "
                  f"{about['failed']} failed, {time.monotonic() - start_s:.0f} s", flush=True)  # fmt: skip
    return 1 if any(count["failed"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(bench())
