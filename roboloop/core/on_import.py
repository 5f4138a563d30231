"""Do something when another package is imported, without importing it ourselves."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from roboloop.core.resolve import resolve


class _Watch(MetaPathFinder):
    """Finds nothing by itself: it has the others find the module, and acts once that has run."""

    def __init__(self, module: str, action: str) -> None:
        self._module, self._action = module, action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            resolve(self._action)()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def when_imported(module: str, action: str) -> None:
    """Call ``module:function`` now if a module is imported already, else as soon as it has been."""
    if module in sys.modules:
        resolve(action)()
    else:
        sys.meta_path.insert(0, _Watch(module, action))
