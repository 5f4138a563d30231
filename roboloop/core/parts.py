"""Splitting a count into parts as equal as whole numbers allow."""

from __future__ import annotations

import itertools


def split_evenly(count: int, parts: int) -> list[range]:
    """Return ``parts`` neighbouring ranges that cover ``range(count)``; the first ones are longer by one if need be."""
    small, larger = divmod(count, parts)
    starts = [i * small + min(i, larger) for i in range(parts + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(starts)]
