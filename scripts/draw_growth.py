"""Draws docs/images/growth.svg from results/growth.json: step time, preparation and memory along three axes.

python scripts/draw_growth.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from draw_peers import STYLE, text

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "growth.svg"
DEVICE = "pocl-3.0"
AXES = {
    "batch": "ResNet-18, 64x64: batch",
    "depth": "ResNets, 32x32, batch 8: layers",
    "length": "GPT, 2 layers, batch 1: tokens",
}
WIDTH, LEFT, TOP, ACROSS, DOWN, GAP_X, GAP_Y = 860, 62, 78, 216, 130, 56, 52
LINES = "path { fill: none; stroke-width: 2; } path.cpu { stroke: #0b6bb8; } path.gpu { stroke: #d1590b; }"

Points = list[tuple[float, float]]


class Panel(NamedTuple):
    """The name of the y axis, and for each line its class and how to get its value from a row."""

    unit: str
    lines: Sequence[tuple[str, Any]]


PANELS = (
    Panel("ms per step", (("cpu", lambda r: r["value"]), ("gpu", lambda r: r["details"]["peer ms"]))),
    Panel(
        "s to capture and to plan",
        (("cpu", lambda r: r["details"]["capture s"]), ("gpu", lambda r: r["details"]["plan s"])),
    ),
    Panel("MB of the plan", (("cpu", lambda r: r["details"]["bytes"] / 1e6),)),
)
LEGEND = (("Handheld", "PyTorch eager"), ("capture", "plan"), ("Handheld",))


def ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside, or the ends if there are fewer than two."""
    inside = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return inside if len(inside) > 1 else [low, high]


def label(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def panel(x: float, y: float, lines: Sequence[tuple[str, Points]]) -> list[str]:
    """Lines in a box with logarithmic axes."""
    xs = sorted({px for _, points in lines for px, _ in points})
    ys = [py for _, points in lines for _, py in points]
    low, high = min(ys) / 1.25, max(ys) * 1.25

    def at(px: float, py: float) -> tuple[float, float]:
        across = math.log(px / xs[0]) / math.log(xs[-1] / xs[0])
        up = math.log(py / low) / math.log(high / low)
        return x + across * ACROSS, y + DOWN - up * DOWN

    parts = [f'<line x1="{x}" y1="{y + DOWN}" x2="{x + ACROSS}" y2="{y + DOWN}"/>']
    parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="{y + DOWN}"/>')
    parts += [text(at(px, low)[0], y + DOWN + 16, f"{px:g}", "soft", "middle") for px in xs]
    parts += [text(x - 6, at(xs[0], py)[1] + 4, label(py), "soft", "end") for py in ticks(low, high)]
    for kind, points in lines:
        places = [at(*point) for point in points]
        path = " L".join(f"{px:.1f} {py:.1f}" for px, py in places)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
        parts += [f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in places]
    return parts


def draw() -> str:
    rows = json.loads((ROOT / "results" / "growth.json").read_text(encoding="utf-8"))["rows"]
    rows = [row for row in rows if row["device"] == DEVICE]
    height = TOP + len(PANELS) * (DOWN + GAP_Y) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Growth of a training step with batch, depth and length</title>",
        f"<style>{STYLE}{LINES}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(16, 24, "Growth of a training step on a CPU with two cores (both axes are logarithmic)", "title"),
    ]
    for column, (axis, title) in enumerate(AXES.items()):
        x = LEFT + column * (ACROSS + GAP_X)
        parts.append(text(x, TOP - 26, title, "bold"))
        of_axis = sorted((int(row["what"].split()[1]), n) for n, row in enumerate(rows) if row["what"].startswith(axis))
        for down, (unit, lines) in enumerate(PANELS):
            y = TOP + down * (DOWN + GAP_Y)
            parts += panel(x, y, [(kind, [(px, figure(rows[n])) for px, n in of_axis]) for kind, figure in lines])
            parts.append(text(x + 6, y - 8, unit, "soft"))
            for k, words in enumerate(LEGEND[down] if column == 0 else ()):
                kind = ("cpu", "gpu")[k]
                parts.append(f'<rect class="{kind}" x="{x + 12}" y="{y + 6 + 16 * k}" width="9" height="9"/>')
                parts.append(text(x + 26, y + 15 + 16 * k, words, "soft"))
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
