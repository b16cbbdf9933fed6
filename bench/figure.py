"""Figures without a library: SVG, written as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

SIZE, MARGIN = 560, 70
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")

Range = tuple[float, float, float]  # low, value, high


def scatter(path: Path, x: str, y: str, groups: Mapping[str, Sequence[tuple[Range, Range]]]) -> None:
    """Dots with their intervals on two logarithmic axes of one scale, and the line where both are
    equal. What is not above zero has no place there and is counted in the legend."""
    values = [one[1] for pairs in groups.values() for pair in pairs for one in pair if one[1] > 0]
    low, high = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if values else (0, 1)
    high = max(high, low + 1)

    def at(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return SIZE * min(max(share, 0.0), 1.0)

    parts = [f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="black"/>', _line(0, SIZE, SIZE, 0, "#888888")]
    for power in range(low, high + 1):
        where = at(10.0**power)
        parts += [
            _line(where, SIZE, where, SIZE + 5, "black"),
            _line(-5, SIZE - where, 0, SIZE - where, "black"),
            _text(where, SIZE + 20, f"{10.0**power:g}", "middle"),
            _text(-8, SIZE - where + 4, f"{10.0**power:g}", "end"),
        ]
    for i, (name, pairs) in enumerate(groups.items()):
        colour = COLOURS[i % len(COLOURS)]
        left_out = 0
        for (x_low, x_at, x_high), (y_low, y_at, y_high) in pairs:
            if x_at <= 0 or y_at <= 0:
                left_out += 1
                continue
            cx, cy = at(x_at), SIZE - at(y_at)
            parts += [
                _line(at(x_low), cy, at(x_high), cy, colour),
                _line(cx, SIZE - at(y_low), cx, SIZE - at(y_high), colour),
                f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}"/>',
            ]
        label = f"{name}, {len(pairs)}" + (f" ({left_out} not above zero)" if left_out else "")
        parts += [f'<circle cx="16" cy="{18 + 20 * i}" r="4" fill="{colour}"/>', _text(26, 22 + 20 * i, label)]
    parts += [
        _text(SIZE / 2, SIZE + 45, x, "middle"),
        f'<g transform="rotate(-90)">{_text(-SIZE / 2, -50, y, "middle")}</g>',
    ]
    whole = SIZE + 2 * MARGIN
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{whole}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<g transform="translate({MARGIN},{MARGIN / 2})">' + "\n".join(parts) + "</g></svg>\n",
        encoding="utf-8",
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
