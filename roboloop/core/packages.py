"""Versions of installed packages, by their own names or by the modules that they bring."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are there."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def bringing(modules: Iterable[str]) -> dict[str, str]:
    """Return the installed package that brings each top-level module; modules that none brings are left out."""
    known = metadata.packages_distributions()
    return {module: known[module][0] for module in modules if module in known}
