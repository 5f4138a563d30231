"""Names of code: ``module:attr`` to what it names, and plug-ins found by entry points."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, reduce
from importlib import metadata
from types import ModuleType
from typing import Any

from roboloop.core.errors import ConfigError, UserError
from roboloop.core.raised import CRASHES, where


def resolve(named: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return what ``module:attr`` names, importing the module; a function is returned as it is."""
    found: Callable[..., Any] = load(named) if isinstance(named, str) else named
    return found


def load(path: str) -> Any:
    """Import ``module:attr``; the attribute may be dotted, but does not lead into a module of another package."""
    module, _, attr = path.partition(":")
    return reduce(_attribute, attr.split("."), importlib.import_module(module))


def _attribute(owner: Any, name: str) -> Any:
    found = getattr(owner, name)
    if isinstance(found, ModuleType) and _package(found) != _package(owner):
        raise AttributeError(f"{name} is a module of another package", name=name, obj=owner)
    return found


def _package(owner: Any) -> str:
    module = owner.__name__ if isinstance(owner, ModuleType) else getattr(owner, "__module__", "")
    return str(module).partition(".")[0]


def load_named(path: str, what: str) -> Any:
    """Import ``module:attr`` that a user named; what cannot be imported is one line that begins with ``what``."""
    module, _, attr = path.partition(":")
    parts = [*module.split("."), *attr.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{what} {path!r} is not of the form module:attr")
    try:
        return load(path)
    except ModuleNotFoundError as error:
        if (error.name or "") not in (module, module.partition(".")[0]) and not module.startswith(f"{error.name}."):
            raise ConfigError(f"{what} {path!r} cannot be imported: {error}") from error
        raise ConfigError(f"{what} {path!r}: there is no module {error.name!r}") from None
    except AttributeError as error:
        if error.obj is None or not isinstance(error.obj, ModuleType | type):  # of the module's own code
            raise ConfigError(f"{what} {path!r} cannot be imported: {where(error)}") from error
        raise ConfigError(f"{what} {path!r}: module {module} has no {attr!r}") from None
    except UserError:
        raise
    except CRASHES as error:  # other people's code may raise anything
        raise ConfigError(f"{what} {path!r} cannot be imported: {where(error)}") from error


@cache
def entry_points(group: str) -> dict[str, str]:
    """Return the names that installed packages give to this group, each with its ``module:attr``."""
    return {point.name: point.value for point in metadata.entry_points(group=group)}
