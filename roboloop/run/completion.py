"""The verb ``completion``: a shell script that completes verbs, recipes, algorithms and config keys."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable

from roboloop.algos import registry as algorithms
from roboloop.core.errors import ConfigError, UserError, nearest
from roboloop.core.flags import flag_names, with_kinds
from roboloop.core.resolve import resolve
from roboloop.core.verbs import VERBS
from roboloop.envs import registry
from roboloop.run import recipes
from roboloop.run.config import Experiment
from roboloop.track.trackers import registry as trackers

SHELLS = ("bash", "zsh")
# the shell takes : and = for words of their own: what they join is put together, and only its end is filled in
_SCRIPT = """_roboloop() {
  local IFS=$'\\n' word last= joins= typed=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ ${#typed[@]} -gt 0 && ( -n $joins || $word == [:=]* ) ]]; then typed[-1]+=$word; else typed+=("$word"); fi
    joins=; [[ $word == *[:=] ]] && joins=1
    last=$word
  done
  [[ $last == [:=] ]] && last=
  local whole="${typed[-1]}"
  COMPREPLY=( $(compgen -W "$(roboloop completion words "${typed[@]}" 2>/dev/null)" -- "$whole") )
  COMPREPLY=( "${COMPREPLY[@]#"${whole%"$last"}"}" )
}
complete -o default -F _roboloop roboloop
"""


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
    verb, before, last = typed[0], typed[-2], typed[-1]
    if (values := _VALUES.get(before)) is not None:
        return values()
    name, equals, _ = last.partition("=")
    if equals:
        return [f"{name}={value}" for value in _VALUES.get(name, list)()]
    is_train = verb in ("train", "sweep")
    if is_train and len(typed) == 2 and not last.startswith("-"):
        return recipes.names()
    if not last.startswith("-"):
        return []
    keys = [f"--{name}" for name in flag_names(_config(typed[1:-1]))] if is_train else []
    return [*_options_of(verb), *(["--env"] if verb == "train" else []), *keys]


_VALUES: dict[str, Callable[[], list[str]]] = {
    "--algo": algorithms.known,
    "--algo.name": algorithms.known,
    "--env": registry.known_ids,
    "--env.id": registry.known_ids,
    "--trackers": trackers.known,
}
"""What may follow an option."""


def _options_of(verb: str) -> list[str]:
    """Return the options that the help of a verb shows."""
    said = io.StringIO()
    with contextlib.suppress(SystemExit, UserError), contextlib.redirect_stdout(said):
        resolve(VERBS[verb][0])(["--help"])
    own = said.getvalue().partition("config keys of")[0]
    return list(dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", own)))


def _config(typed: list[str]) -> Experiment:
    """Return the config that the words so far ask for, as far as they can be read."""
    from roboloop.run.commands import aliases, train_options
    from roboloop.run.training import base_config

    recipe = typed[0] if typed and not typed[0].startswith("-") else None
    with contextlib.suppress(UserError):
        known, flags = train_options().parse_known_args(typed[1:] if recipe else typed)
        return with_kinds(base_config(recipe, known.config, known.algo), aliases(flags))
    return Experiment()
