"""The commands that README and docs show: found in their pages, and cut down to a small budget."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from roboloop.core.flags import flag_names
from roboloop.core.options import Options
from roboloop.core.vouched import vouched
from roboloop.launch.commands import _sweep, _sweep_options
from roboloop.run.commands import aliases, base_config, config_of, train_options
from roboloop.run.config import Experiment

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
"""All pages whose commands are read."""
SHORTER = 625
"""Steps are divided by it: 45,000 stay a multiple of eight environments."""
MOST_STEPS = 80
SMALL = {
    "warmup-steps": "16", "log-every-steps": "16", "eval.episodes": "1",
    "eval.every-steps": "100000", "env.max-episode-steps": "8", "env.eval-max-episode-steps": "8",
    "algo.batch-size": "60", "update.per-step": "0.1",  # 60 rows fall into 2, 3 and 5 tasks
    "algo.processes": "1", "algo.sac.processes": "1", "algo.ppo.processes": "1",
}  # fmt: skip
"""Config keys of a small run, where its algorithm has them."""
OF_VERB = {
    "eval": ["--episodes", "1"],
    "record": ["--episodes", "3"],
    "sysid": ["--generations", "1", "--transitions", "20"],
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LOOP = re.compile(r"for (\w+) in ([^;]+); do\s+(.*?)\s*;?\s*done", re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(roboloop [^`]+)`")


def fences(page: str, *languages: str) -> list[str]:
    """Return the blocks of some languages in a page."""
    return [body for language, body in _FENCE.findall((ROOT / page).read_text()) if language in languages]


def commands(page: str) -> list[str]:
    """Return the shell commands in a page's fences, in their order: loops unrolled, comments left out."""
    return [command for body in fences(page, "", "bash", "sh") for command in _of_block(body)]


def inline(page: str) -> list[str]:
    """Return the commands of ours that stand in a page's sentences and tables."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    return [" ".join(found.split()) for found in _INLINE.findall(text)]


def _of_block(body: str) -> Iterator[str]:
    body = re.sub(r"\s+#.*$|^#.*$", "", body, flags=re.MULTILINE).replace("\\\n", " ")
    body = _LOOP.sub(_unrolled, body)
    for line in body.splitlines():
        for part in line.split("&&"):
            command = part.strip().removesuffix("&").strip()
            if re.match(r"(roboloop|pip|make|ray|ssh|python)\s", command):
                yield " ".join(command.split())


def _unrolled(loop: re.Match[str]) -> str:
    name, values, inside = loop.groups()
    return "\n".join(re.sub(rf"\${name}\b", value, line) for value in values.split() for line in inside.splitlines())


def words_of(command: str, whole: bool = True) -> list[str]:
    """Return the words behind ``roboloop``, with or without those in brackets, which may be left out."""
    return shlex.split(re.sub(r"\[(-[^\]]*)\]", r"\1" if whole else "", command).replace("...", ""))[1:]


def small(words: list[str]) -> list[str]:
    """Return a command with a small budget: what is added comes last, so that it wins."""
    verb = words[0]
    if verb == "train":
        return [*_scaled(words), *_small_run(words[1:])]
    if verb == "sweep":
        config = _sweep(*_source_of(words[1:])).base
        trials = ["--trials", "2"] if "--trials" in words else []
        return [*words, *_keys(config), *_steps(config), "--seeds", "0", *trials]
    return [*words, *OF_VERB.get(verb, [])]


def _source_of(args: list[str]) -> tuple[str | None, Namespace, list[str], Options]:
    options = _sweep_options()
    source = args[0] if not args[0].startswith("-") else None
    known, flags = options.parse_known_args(args[1:] if source else args)
    return source, known, aliases(flags), options


def _scaled(words: list[str]) -> list[str]:
    """Return the words with the steps that they name divided, so that they name the same checkpoints."""
    found = list(words)
    for i, word in enumerate(words[:-1]):
        if word in ("--at", "--steps"):
            found[i + 1] = str(_fewer(int(words[i + 1])))
    return found


def _fewer(steps: int) -> int:
    return min(max(steps // SHORTER, 1), MOST_STEPS)


def _small_run(args: list[str]) -> list[str]:
    if "--resume" in args:
        return ["--steps", str(_fewer(50_000) - 4)]  # what is finished goes on
    if "--fork" in args:
        return []
    config = config_of_words(args)
    return [*_keys(config), *([] if "--steps" in args else _steps(config))]


def config_of_words(args: list[str]) -> Experiment:
    """Return the config of the words behind ``train``."""
    vouched.take(args)  # what is typed may be imported
    recipe = args[0] if not args[0].startswith("-") else None
    known, flags = train_options().parse_known_args(args[1:] if recipe else args)
    return config_of(base_config(recipe, known.config, known.algo), aliases(flags))


def _steps(config: Experiment) -> list[str]:
    return ["--steps", str(_fewer(config.steps))]


def _keys(config: Experiment) -> list[str]:
    names = set(flag_names(config))
    return [word for name, value in SMALL.items() if name in names for word in (f"--{name}", value)]
