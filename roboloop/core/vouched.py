"""What the user of this process typed, and so vouches for: see ``run/trust.py``."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from roboloop.core.errors import DataError

FLAG = "--trust"
_GYMNASIUM = {"gymnasium"}
_MODULE = re.compile(r"(?:^|/)([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]")
_KEYS = ("--algo", "--env", "--observers", "--trackers")
"""Flags that take names of code, beside those with a dot."""
_FOLDERS = ("", "runs")
"""Where the path of a run is looked for."""
_PLUGINS = ("roboloop.", "gymnasium.envs")
"""Groups of entry points by which a package says that it is a plug-in."""


class Vouched:
    """Words that the user typed in this command; ``--trust`` vouches for everything that a file names.

    In Python each call vouches for what it was given, in its own thread and until it returns.
    """

    def __init__(self) -> None:
        self._command = _Words()
        self._calls = threading.local()

    def take(self, args: Sequence[str]) -> list[str]:
        """Return the words of a command without ``--trust``, and remember them, but for names of runs and datasets."""
        self._command = _Words(FLAG in args)
        self._command.words = _with_suites(_typed(args))
        return [word for word in args if word != FLAG]

    @contextmanager
    def during(self, words: Iterable[str], everything: bool = False) -> Iterator[None]:
        """Vouch for words, or for everything, in this thread while this is entered."""
        outer = self._of_call
        self._calls.words = _Words(everything or bool(outer and outer.everything))
        self._calls.words.words = _with_suites(words) | (outer.words if outer else set())
        try:
            yield
        finally:
            self._calls.words = outer

    def add(self, words: Iterable[str]) -> None:
        """Take words for typed: the user named the file that they are in."""
        (self._of_call or self._command).words.update(words)

    def typed_modules(self) -> set[str]:
        """Return the top-level modules that the user typed, as in ``module:attr`` and ``gym/module:Id``."""
        words = {word for each in (self._command, self._of_call) if each for word in each.words}
        # a run directory may be called like a module
        return {found[1] for word in words if not os.path.lexists(word) for found in _MODULE.finditer(word)}

    def __contains__(self, word: str) -> bool:
        return any(each.everything or word in each.words for each in (self._command, self._of_call) if each)

    @property
    def _of_call(self) -> _Words | None:
        return getattr(self._calls, "words", None)


def _typed(args: Sequence[str]) -> Iterator[str]:
    """Yield words, but for paths of what is there, whose names may be a stranger's: those count behind a key alone."""
    flag = ""
    for word in args:
        head, _, value = word.partition("=")
        flag = head if word.startswith("--") else flag
        is_key = "." in flag or flag in _KEYS
        yield from (part for part in (word, value) if part and (is_key or not _is_there(part)))


def _is_there(path: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, path)) for folder in _FOLDERS)


def _with_suites(words: Iterable[str]) -> set[str]:
    """Return words, and of ``module:suite/task`` the suite too."""
    typed = set(words)
    return typed | {suite for word in typed if ":" in (suite := word.partition("/")[0])}


class _Words:
    def __init__(self, everything: bool = False) -> None:
        self.everything = everything
        self.words: set[str] = set()


vouched = Vouched()


class TypedModules:
    """Finds modules in the working directory, after all others: those whose name the user typed.

    Once one of them was found there, the directory holds the user's own code, and its modules may import each other.
    """

    def __init__(self, directory: str, names: Iterable[str] = ()) -> None:
        self._directory, self._names = directory, frozenset(names)
        self._is_users_own = _ALL in self._names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is, if it may be looked for here."""
        if path is not None:
            return None
        if not (self._is_users_own or name in self._names or name in vouched.typed_modules()):
            return None
        spec = PathFinder.find_spec(name, [self._directory], target)
        self._is_users_own |= spec is not None
        return spec

    def for_children(self) -> str:
        """Return what ``of_parent`` takes, so that a child process finds the same modules."""
        every = {_ALL} if self._is_users_own else set()
        return os.pathsep.join((self._directory, *sorted(self._names | vouched.typed_modules() | every)))


_ALL = "*"
"""Among the names that a child process is told: any module."""
CHILD_MODULES = "ROBOLOOP_TYPED_MODULES"
"""Environment variable by which a child process hears of them."""


def find_typed_modules() -> None:
    """Look for modules in the working directory too, from now on."""
    _install(TypedModules(os.getcwd()))


def of_parent(said: Mapping[str, str] = os.environ) -> None:
    """Look for the modules that the parent process named."""
    if text := said.get(CHILD_MODULES):
        directory, *names = text.split(os.pathsep)
        _install(TypedModules(directory, names))


def _install(finder: TypedModules) -> None:
    sys.meta_path[:] = [other for other in sys.meta_path if not isinstance(other, TypedModules)]
    sys.meta_path.append(finder)


def for_children() -> dict[str, str]:
    """Return what to add to the environment of a child process."""
    found = [finder for finder in sys.meta_path if isinstance(finder, TypedModules)]
    return {CHILD_MODULES: found[0].for_children()} if found else {}


def check_code(key: str, name: str, modules: Iterable[str], where: object = "") -> None:
    """Refuse a name of code unless it was typed or all its modules are of roboloop or of an installed plug-in."""
    if name in vouched:
        vouched.add([name])  # by --trust, as if it had been typed: its module may be in the working directory
        return
    tops = {_top(module) for module in modules}
    if not tops or not tops <= {"roboloop", *_GYMNASIUM, *_plugins()}:
        check_typed(key, name, where)


def check_typed(
    key: str, name: str, where: object, why: str = "is neither of roboloop nor of an installed plug-in"
) -> None:
    """Refuse a name unless it was typed; ``why`` is the rest of the sentence that begins with it."""
    if name not in vouched:
        prefix = f"{where}: " if where else ""
        raise DataError(f"{prefix}{key} {name!r} {why}; {FLAG} uses it (in Python, trust=True)")


def is_of_plugin(module: str) -> bool:
    """Say whether a module is of an installed plug-in, of which Gymnasium is one."""
    return _top(module) in _GYMNASIUM | _plugins()


def _top(module: str) -> str:
    return module.partition(".")[0]


def _plugins() -> set[str]:
    """Return the top-level modules of installed plug-ins."""
    points = metadata.entry_points()
    groups = [group for group in points.groups if group.startswith(_PLUGINS)]
    return {_top(point.module) for group in groups for point in points.select(group=group)}
