"""The verb ``completion``: a shell script that completes verbs, recipes, algorithms and config keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from itertools import pairwise

from roboloop.algos import registry as algorithms
from roboloop.core.errors import ConfigError, UserError, nearest
from roboloop.core.flags import flag_names
from roboloop.core.verbs import VERBS
from roboloop.run import recipes
from roboloop.run.config import Experiment

SHELLS = ("bash", "zsh")
_SCRIPT = """_roboloop() {
  local IFS=$'\\n'
  COMPREPLY=( $(compgen -W "$(roboloop completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" \\
    -- "${COMP_WORDS[COMP_CWORD]}") )
}
complete -o default -F _roboloop roboloop
"""
_TRAIN = ("--config", "--algo", "--resume", "--fork", "--at", "--overwrite", "--help", "--help-all", "--env")


def completion(args: list[str]) -> int:
    """Print the script of a shell, or the words that may follow others."""
    if args and args[0] == "words":
        print("\n".join(words(args[1:])))
        return 0
    if len(args) != 1 or args[0] in ("-h", "--help"):
        print('usage: roboloop completion bash|zsh        eval "$(roboloop completion bash)" in your shell\'s rc file')
        return 0
    if args[0] not in SHELLS:
        raise ConfigError(f"completion: unknown shell {args[0]!r}{nearest(args[0], SHELLS)}")
    print(("autoload -U +X bashcompinit && bashcompinit\n" if args[0] == "zsh" else "") + _SCRIPT, end="")
    return 0


def words(typed: list[str]) -> Iterable[str]:
    """Return what the last of the typed words may become."""
    if len(typed) <= 1:
        return list(VERBS)
    verb, before = typed[0], typed[-2]
    if before == "--algo":
        return algorithms.known()
    if verb in ("train", "sweep") and len(typed) == 2 and not typed[-1].startswith("-"):
        return recipes.names()
    if verb in ("train", "sweep") and typed[-1].startswith("-"):
        return [*_TRAIN, *(f"--{name}" for name in flag_names(_config(typed[1:-1])))]
    return []


def _config(typed: list[str]) -> Experiment:
    """Return the config that the words so far ask for, as far as they can be read."""
    from roboloop.run.training import base_config

    recipe = typed[0] if typed and not typed[0].startswith("-") else None
    algo = next((after for word, after in pairwise(typed) if word == "--algo"), None)
    with contextlib.suppress(UserError):
        return base_config(recipe, None, algo)
    return Experiment()
