"""What a call of ``rl.train`` asks for, as keys that change a config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from roboloop.api.envs import Known, check_processes, env_section
from roboloop.api.keys import applied, difference, flags_of, nested, words_of
from roboloop.core.errors import ConfigError
from roboloop.run import recipes
from roboloop.run import trust as trusted
from roboloop.run.config import Experiment
from roboloop.run.training import base_config, changed

PathLike: TypeAlias = str | os.PathLike[str]


class TrainRequest:
    """Recipe, environment, algorithm and keys; ``saved_id`` is the environment of a run to go on with."""

    def __init__(
        self, recipe: PathLike | Experiment | None, env: Any, algo: Any, keys: Mapping[str, Any], saved_id: str = ""
    ) -> None:
        self._recipe = recipe
        section, self._makers = env_section(env, saved_id) if env is not None else ({}, {})
        algorithm = algo if isinstance(algo, Mapping) else {} if algo is None else {"name": algo}
        self._keys = nested(keys, {"env": section, "algo": algorithm})

    def known(self, before: Known, trust: bool) -> Known:
        """Return what the call vouches for, beside what was before."""
        return before.plus(words_of(self._keys), self._makers, trust)

    def change(self, config: Experiment) -> Experiment:
        """Return a config with the keys."""
        config = applied(config, self._keys)
        check_processes(config)
        return config

    def config(self) -> Experiment:
        """Return the config of recipe and keys."""
        if isinstance(self._recipe, Experiment):
            trusted.vouch_for(self._recipe)
            return changed(self._recipe, self.change)
        return changed(base_config(*_recipe_or_file(self._recipe), None), self.change)

    def command(self) -> list[str]:
        """Return the words of ``roboloop train`` that ask for the same, for the run's ``meta.json``."""
        if isinstance(self._recipe, Experiment):
            return [*flags_of(difference(self._recipe)), *flags_of(self._keys)]
        recipe, file = _recipe_or_file(self._recipe)
        first = [recipe] if recipe else ["--config", str(file)] if file else []
        return [*first, *flags_of(self._keys)]


def _recipe_or_file(named: PathLike | None) -> tuple[str | None, Path | None]:
    """Return a recipe's name or a config file; text that looks like a file is one."""
    if named is None:
        return None, None
    if isinstance(named, str) and not named.endswith((".yaml", ".yml", ".json")):
        if named not in recipes.names() and (os.sep in named or Path(named).exists()):
            raise ConfigError(
                f"{named!r} is no recipe and no config file: rl.train(resume={named!r}) goes on with a run"
            )
        return named, None
    return None, Path(named)
