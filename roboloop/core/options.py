"""The few options of a verb, taken out of its arguments; argparse with one-line errors."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from roboloop.core.errors import ConfigError, nearest


class Options(argparse.ArgumentParser):
    """An argument parser that raises ConfigError with the nearest right name."""

    @property
    def names(self) -> list[str]:
        """All options, as they are typed."""
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            message = f"unknown option {unknown[1]}{nearest(unknown[1], self.names)}"
        raise ConfigError(f"{self.prog.removeprefix('roboloop ')}: {message}")
