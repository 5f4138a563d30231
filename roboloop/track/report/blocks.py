"""What a report is made of; how it looks is for the writers of HTML and Markdown to say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True)
class Table:
    """Rows of plain text; the first column names the row."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Note:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Stroke:
    """One line of a chart; points that are not finite are left out."""

    look: int
    """Number of its colour and style."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    is_faint: bool = False
    """One run of several, behind their line."""


@dataclass(frozen=True)
class Chart:
    """Lines over common axes."""

    caption: str
    x_label: str
    y_label: str
    strokes: tuple[Stroke, ...]
    is_rate: bool = False
    """Values between 0 and 1, shown in percent."""
    x_is_rate: bool = False


@dataclass(frozen=True)
class Legend:
    """What the lines of the charts near it are."""

    labels: tuple[str, ...]


@dataclass(frozen=True)
class Video:
    """A file to show or to link to."""

    caption: str
    path: Path


Block: TypeAlias = Table | Note | Chart | Legend | Video


@dataclass(frozen=True)
class Section:
    """A titled part, which can be asked for by its key."""

    key: str
    title: str
    blocks: tuple[Block, ...]
