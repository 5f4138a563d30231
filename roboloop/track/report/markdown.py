"""A report as Markdown: tables and notes; charts are for the page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from roboloop.track.report.blocks import Note, Section, Table


def document(title: str, sections: Sequence[Section], with_headings: bool = True) -> str:
    """Return the tables and notes of sections."""
    parts = [f"# {_text(title)}"] if with_headings else []
    for section in sections:
        blocks = [block for block in section.blocks if isinstance(block, Table | Note)]
        if blocks and with_headings:
            parts.append(f"## {_text(section.title)}")
        for block in blocks:
            parts += [_text(block.text)] if isinstance(block, Note) else [_text(block.caption), _table(block)]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [table.header, tuple("---" for _ in table.header), *_without_repeats(table)]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |".replace("|  |", "| |") for line in lines)


def _without_repeats(table: Table) -> list[tuple[str, ...]]:
    """Return the rows with a first cell only where it changes: seeds of one group stand together."""
    if table.header[1:2] != ("seed",):
        return list(table.rows)
    befores = ["", *(row[0] for row in table.rows)]
    return [("", *row[1:]) if row[0] == before else row for row, before in zip(table.rows, befores, strict=False)]


def _cell(text: str) -> str:
    return text if text == "---" else _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Return text that is only text: no markup, no tags, one line."""
    plain = html.escape(" ".join(text.split()), quote=False)
    # underscores and hyphens inside words are harmless and frequent in names
    safe = re.sub(r"([\\`*~]|^#|(?<!\w)_|_(?!\w))", r"\\\1", plain)
    return re.sub(r"\]([(\[:])", r"]\\\1", safe)  # brackets are frequent too, and nothing without what follows
