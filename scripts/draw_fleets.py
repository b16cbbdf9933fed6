"""Draws docs/images/fleets.svg, the picture of docs/federated.md, from results/federated.json.

python scripts/draw_fleets.py
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "fleets.svg"
WIDTH, PANEL, HEIGHT, LEFT, TOP, GAP = 720, 176, 150, 52, 66, 58
STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1d2129; }
.soft { fill: #5d6675; font-size: 11px; } .title { font-size: 15px; font-weight: 600; } .bold { font-weight: 600; }
.value { font-size: 11px; } .paper { fill: #fdfdfc; } .curve { stroke: #0b6bb8; fill: none; stroke-width: 2; }
.dot { fill: #0b6bb8; } .grid { stroke: #dfe3e8; } .even { stroke: #9aa4b2; stroke-dasharray: 4 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee; } .soft { fill: #9aa4b2; } .paper { fill: #14171c; } .grid { stroke: #2b313a; }
  .curve { stroke: #5aaef0; } .dot { fill: #5aaef0; } .even { stroke: #6b7686; }
}
"""


@dataclass(frozen=True)
class Quantity:
    """What one panel shows: a figure of the rows, divided by `size`."""

    title: str
    figure: str
    unit: str
    size: float = 1.0


QUANTITIES = (
    Quantity("time of a round", "round_s", "s"),
    Quantity("memory of the server", "peak_bytes", "MB", 1e6),
    Quantity("sent in a round", "bytes", "MB", 1e6),
)


def points(quantity: Quantity) -> list[tuple[int, float]]:
    """Devices and figure, in the order of the number of devices."""
    rows = json.loads((ROOT / "results" / "federated.json").read_text(encoding="utf-8"))["rows"]
    figures = [row["figures"] for row in rows if "virtual devices" in row["what"]]
    return sorted((one["clients"], one[quantity.figure] / quantity.size) for one in figures)


def number(value: float) -> str:
    """Three digits, and no more than needed."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def panel(quantity: Quantity, left: float) -> list[str]:
    """One panel. Both axes are logarithmic."""
    found = points(quantity)
    few, many = math.log10(found[0][0]), math.log10(found[-1][0])
    low = math.floor(math.log10(min(value for _, value in found)))
    high = math.ceil(math.log10(max(value for _, value in found)))

    def place(devices: float, value: float) -> tuple[float, float]:
        x = left + PANEL * (math.log10(devices) - few) / (many - few)
        return x, TOP + HEIGHT * (high - math.log10(value)) / (high - low)

    parts = [text(left, TOP - 16, f"{quantity.title}, {quantity.unit}", "bold")]
    for power in range(low, high + 1):
        y = place(1, 10.0**power)[1]
        parts += [line(left, y, left + PANEL, y, "grid"), text(left - 6, y + 4, f"{10.0**power:,g}", "soft", "end")]
    for devices, _ in found:
        parts.append(text(place(devices, 1)[0], TOP + HEIGHT + 18, f"{devices:,}", "soft", "middle"))
    parts.append(text(left + PANEL / 2, TOP + HEIGHT + 36, "devices", "soft", "middle"))
    path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in found)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    for devices, value in found:
        x, y = place(devices, value)
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
        anchor = "start" if devices == found[0][0] else "end" if devices == found[-1][0] else "middle"
        parts.append(text(x, y - 8, number(value), "value", anchor))
    return parts


def draw() -> str:
    height = TOP + HEIGHT + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>The load of a federated server against the number of devices</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(16, 24, "The load of the server against the number of devices", "title"),
    ]
    for n, quantity in enumerate(QUANTITIES):
        parts += panel(quantity, LEFT + n * (PANEL + GAP))
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
