"""Charts as inline SVG: colours are classes of the page, so that they follow its light or dark look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from roboloop.track.report.blocks import Chart, Stroke
from roboloop.track.terminal import count

_WIDTH, _HEIGHT = 640, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 46
_TICKS = 5
LOOKS = 8
"""Colours; further lines have the same ones, dashed and dotted."""


class _Axis(NamedTuple):
    low: float
    high: float
    start: float
    length: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * self.length


_MOST = 1e300
"""Beyond it differences are no numbers."""


def draw(chart: Chart) -> str:
    """Return one chart."""
    x_axis = _axis([x for stroke in chart.strokes for x in stroke.x], _LEFT, _WIDTH - _LEFT - _RIGHT, chart.x_is_rate)
    ys = [y for stroke in chart.strokes for y in (*stroke.y, *stroke.low, *stroke.high)]
    y_axis = _axis(ys, _HEIGHT - _BOTTOM, _TOP + _BOTTOM - _HEIGHT, chart.is_rate)
    label = escape(chart.caption, quote=True)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"><title>{label}</title>']
    parts += _grid(chart, x_axis, y_axis)
    # bands behind all lines, single runs behind the lines of groups
    parts += [part for stroke in chart.strokes for part in _band(stroke, x_axis, y_axis)]
    for stroke in sorted(chart.strokes, key=lambda stroke: not stroke.is_faint):
        parts += _line(stroke, x_axis, y_axis)
    return "".join([*parts, "</svg>"])


def look_of(number: int) -> str:
    """Return the classes of a line."""
    dash = ("", " dashed", " dotted")[number // LOOKS % 3]
    return f"c{number % LOOKS}{dash}"


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two ends, about five."""
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _axis(values: Sequence[float], start: float, length: float, is_rate: bool) -> _Axis:
    if is_rate:
        return _Axis(-0.03, 1.03, start, length)
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one point, or a level line: some room around it
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    low, high = max(low, -_MOST), min(high, _MOST)
    margin = 0.03 * (high - low)
    return _Axis(low - margin, high + margin, start, length)


def _grid(chart: Chart, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in _marks(y_axis, chart.is_rate):
        y = y_axis.at(value)
        text = f"{100 * value:.0f} %" if chart.is_rate else count(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    for value in _marks(x_axis, chart.x_is_rate):
        x = x_axis.at(value)
        text = f"{100 * value:.0f} %" if chart.x_is_rate else count(value)
        yield f'<path class="grid" d="M{x:.1f} {_TOP}V{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>'
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(chart.x_label)}</text>'
    turned = f'x="14" y="{(_TOP + bottom) / 2}" transform="rotate(-90 14 {(_TOP + bottom) / 2})"'
    yield f'<text {turned} text-anchor="middle">{escape(chart.y_label)}</text>'


def _marks(axis: _Axis, is_rate: bool) -> list[float]:
    return [0.0, 0.25, 0.5, 0.75, 1.0] if is_rate else ticks(axis.low, axis.high)


def _points(xs: Sequence[float], ys: Sequence[float], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    return [f"{x_axis.at(x):.1f} {y_axis.at(y):.1f}" for x, y in pairs]


def _band(stroke: Stroke, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    if stroke.low:
        there = _points(stroke.x, stroke.high, x_axis, y_axis)
        back = _points(stroke.x, stroke.low, x_axis, y_axis)[::-1]
        yield f'<path class="band {look_of(stroke.look)}" d="M{"L".join([*there, *back])}Z"/>'


def _line(stroke: Stroke, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    points = _points(stroke.x, stroke.y, x_axis, y_axis)
    kind = f"{'faint ' if stroke.is_faint else ''}line {look_of(stroke.look)}"
    if len(points) == 1:  # a line of one point is invisible
        x, _, y = points[0].partition(" ")
        yield f'<circle class="dot {look_of(stroke.look)}" cx="{x}" cy="{y}" r="3"/>'
    elif points:
        yield f'<path class="{kind}" d="M{"L".join(points)}"/>'
