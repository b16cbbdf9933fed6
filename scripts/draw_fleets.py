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
WIDTH, PANEL, HEIGHT, LEFT, TOP, GAP = 720, 170, 150, 56, 96, 66
#: kind of rows -> its class and name
SERIES = {False: ("simulated", "in Flower's simulation"), True: ("alone", "the server alone")}
STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1d2129; }
.soft { fill: #5d6675; font-size: 11px; } .title { font-size: 15px; font-weight: 600; } .bold { font-weight: 600; }
.value { font-size: 11px; } .paper { fill: #fdfdfc; } .grid { stroke: #dfe3e8; }
polyline { fill: none; stroke-width: 2; }
.alone { stroke: #0b6bb8; fill: #0b6bb8; } .simulated { stroke: #d1590b; fill: #d1590b; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee; } .soft { fill: #9aa4b2; } .paper { fill: #14171c; } .grid { stroke: #2b313a; }
  .alone { stroke: #5aaef0; fill: #5aaef0; } .simulated { stroke: #ff9d5c; fill: #ff9d5c; }
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


def points(quantity: Quantity) -> dict[bool, list[tuple[int, float]]]:
    """Series -> devices and figure, in the order of the number of devices."""
    rows = json.loads((ROOT / "results" / "federated.json").read_text(encoding="utf-8"))["rows"]
    found: dict[bool, list[tuple[int, float]]] = {}
    for figures in (row["figures"] for row in rows if "virtual devices" in row["what"]):
        if quantity.figure == "round_s" and figures.get("rounds") == 1:  # It includes the answers of all devices.
            continue
        found.setdefault(figures["direct"], []).append((figures["clients"], figures[quantity.figure] / quantity.size))
    if quantity.figure == "bytes":  # The same in both.
        found.pop(False, None)
    return {direct: sorted(pairs) for direct, pairs in sorted(found.items())}


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
    every = [point for pairs in found.values() for point in pairs]
    few, many = (math.log10(edge(devices for devices, _ in every)) for edge in (min, max))
    low = math.floor(math.log10(min(value for _, value in every)))
    high = math.ceil(math.log10(max(value for _, value in every)))

    def place(devices: float, value: float) -> tuple[float, float]:
        x = left + PANEL * (math.log10(devices) - few) / (many - few)
        return x, TOP + HEIGHT * (high - math.log10(value)) / (high - low)

    parts = [text(left, TOP - 16, f"{quantity.title}, {quantity.unit}", "bold")]
    for power in range(low, high + 1):
        y = place(1, 10.0**power)[1]
        parts += [line(left, y, left + PANEL, y, "grid"), text(left - 6, y + 4, f"{10.0**power:,g}", "soft", "end")]
    for devices in sorted({devices for devices, _ in every}):
        parts.append(text(place(devices, 1)[0], TOP + HEIGHT + 18, f"{devices:,}", "soft", "middle"))
    parts.append(text(left + PANEL / 2, TOP + HEIGHT + 36, "devices", "soft", "middle"))
    for direct, pairs in found.items():
        kind = SERIES[direct][0]
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in pairs)
        parts.append(f'<polyline class="{kind}" style="fill: none" points="{path}"/>')
        for devices, value in pairs:
            x, y = place(devices, value)
            parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
            both = all(devices in dict(pairs) for pairs in found.values()) and len(found) > 1
            below = direct and both and y + 24 < TOP + HEIGHT  # The server alone is the lower curve.
            anchor = "end" if devices == max(devices for devices, _ in every) else "middle"
            parts.append(text(x, y + (17 if below else -8), number(value), "value", anchor))
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
    for n, (kind, words) in enumerate(SERIES.values()):
        parts.append(f'<circle class="{kind}" cx="{22 + 190 * n}" cy="46" r="4"/>')
        parts.append(text(32 + 190 * n, 50, words, "soft"))
    for n, quantity in enumerate(QUANTITIES):
        parts += panel(quantity, LEFT + n * (PANEL + GAP))
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
