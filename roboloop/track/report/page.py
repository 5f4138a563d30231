"""A report as one HTML file: no script, nothing from the network, light and dark, readable on a phone."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from roboloop.core.files import read_bytes
from roboloop.track.report.blocks import Block, Chart, Legend, Note, Section, Table, Video
from roboloop.track.report.svg import draw, look_of

_KINDS = {".mp4": "video/mp4", ".gif": "image/gif"}
_MANY_ROWS = 15
_LIGHT = ("#0072b2", "#c14a00", "#00805c", "#b8568f", "#9a6700", "#2b8cc4", "#7f3c8d", "#555555")
_DARK = ("#56a8e0", "#f0803c", "#3fc49a", "#e08fbf", "#e0b040", "#8fd0f5", "#c08fd0", "#bbbbbb")
# nothing may be loaded or run: what names and configs hold can do no harm even if an escape were missing
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; base-uri 'none'"
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1c1c; --soft: #666; --edge: #d8d8d8; --stripe: #f5f6f8; %s }
@media (prefers-color-scheme: dark) {
  :root { --back: #15171a; --text: #e6e6e6; --soft: #a0a0a0; --edge: #3a3d42; --stripe: #1d2024; %s }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid var(--edge) }
nav a { margin-right: 1rem } a { color: var(--c0) }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding-bottom: .4rem }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem .3rem;
  border-bottom: 1px solid var(--edge); overflow-wrap: normal; max-width: 44rem }
tbody tr:nth-child(even) { background: var(--stripe) } th[scope=row] { font-weight: 600 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%%, 26rem), 1fr)); gap: 1rem }
figure { margin: 0 } figcaption { color: var(--soft); font-size: .9rem }
svg { width: 100%%; height: auto } svg text { fill: var(--soft); font-size: 13px }
.grid { stroke: var(--edge); fill: none } .line { fill: none; stroke-width: 2.2 }
.faint { stroke-width: 1; opacity: .35 } .band { opacity: .16 }
.dashed { stroke-dasharray: 7 4 } .dotted { stroke-dasharray: 2 3 }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem }
.legend svg { width: 28px; height: 10px; margin-right: .5rem }
video, img { max-width: 100%% }
"""


def document(title: str, sections: Sequence[Section], out: Path, embed_mb: float = 5.0) -> str:
    """Return the page; ``out`` is where it will be, from where larger videos are linked."""
    colours = [" ".join(f"--c{i}: {colour};" for i, colour in enumerate(palette)) for palette in (_LIGHT, _DARK)]
    looks = "".join(
        f".line.c{i} {{ stroke: var(--c{i}) }} .band.c{i}, .dot.c{i} {{ fill: var(--c{i}) }}\n"
        for i in range(len(_LIGHT))
    )
    links = " ".join(f'<a href="#{section.key}">{escape(section.title)}</a>' for section in sections)
    body = "\n".join(_section(section, out, embed_mb) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE % tuple(colours)}{looks}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n<nav>{links}</nav>\n<main>\n{body}\n</main></body></html>\n"
    )


def _section(section: Section, out: Path, embed_mb: float) -> str:
    parts: list[str] = []
    for is_chart, blocks in groupby(section.blocks, lambda block: isinstance(block, Chart)):
        inner = "".join(_block(block, out, embed_mb) for block in blocks)
        parts.append(f'<div class="charts">{inner}</div>\n' if is_chart else inner)
    return f'<section id="{section.key}"><h2>{escape(section.title)}</h2>\n{"".join(parts)}</section>'


def _block(block: Block, out: Path, embed_mb: float) -> str:
    match block:
        case Table():
            return _table(block)
        case Note():
            return f"<p>{escape(block.text)}</p>\n"
        case Legend():
            return _legend(block)
        case Video():
            return _video(block, out, embed_mb)
        case Chart():
            return _chart(block)


def _chart(chart: Chart) -> str:
    return f"<figure>{draw(chart)}<figcaption>{escape(chart.caption)}</figcaption></figure>\n"


def _legend(legend: Legend) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 28 10" aria-hidden="true"><path class="line {look_of(i)}" d="M0 5H28"/></svg>'
        f"{escape(label)}</li>"
        for i, label in enumerate(legend.labels)
    )
    return f'<ul class="legend">{items}</ul>\n'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    # a region that scrolls must be reachable by keyboard
    inner = (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table>'
        f"<caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
    )
    if len(table.rows) <= _MANY_ROWS:
        return inner
    return f"<details><summary>{escape(table.caption)} ({len(table.rows)} rows)</summary>\n{inner}</details>\n"


def _video(video: Video, out: Path, embed_mb: float) -> str:
    kind = _KINDS[video.path.suffix]
    name = escape(video.caption)
    if video.path.stat().st_size > embed_mb * 1e6:
        # a colon is quoted too, so that a file name cannot be another scheme
        link = quote(os.path.relpath(video.path, out.parent))
        return f'<p><a href="{escape(link)}">{name}</a></p>\n'
    data = read_bytes(video.path, max(int(embed_mb * 1e6), 0))
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    shown = (
        f'<video controls preload="metadata" src="{source}"></video>'
        if kind.startswith("video")
        else f'<img alt="{name}" src="{source}">'
    )
    return f"<figure>{shown}<figcaption>{name}</figcaption></figure>\n"
