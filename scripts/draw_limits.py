"""Draws docs/images/limits.svg, the picture of docs/limits.md, from results/limits_curve.json.

python scripts/draw_limits.py
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "limits.svg"
NAMES = {
    "resnet50": "ResNet-50",
    "densenet100": "DenseNet-100",
    "mobilenet_v2": "MobileNetV2",
    "bert_base": "BERT-base",
    "gpt": "GPT",
}
KINDS = {
    "Handheld": ("own", "Handheld under a limit"),
    "PyTorch checkpoint": ("ring", "PyTorch with checkpoint"),
    "PyTorch budget": ("square", "PyTorch's memory budget"),
    "PyTorch": ("plain", "PyTorch as it is"),
}
WIDTH, PANEL, HEIGHT, LEFT, TOP, COLUMNS = 760, 250, 220, 46, 78, 3
PLOT, TALL = 186, 150
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1d2129; }
.soft { fill: #5d6675; font-size: 11px; } .title { font-size: 15px; font-weight: 600; } .bold { font-weight: 600; }
.paper { fill: #fdfdfc; } .axis { stroke: #9aa4b2; } .grid { stroke: #e3e6ea; } .fill-own { fill: #0b6bb8; }
.line-own { stroke: #0b6bb8; fill: none; stroke-width: 2; } .ring { stroke: #d1590b; fill: none; stroke-width: 2; }
.square { fill: #8a63d2; } .plain { fill: #d1590b; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee; } .soft { fill: #9aa4b2; } .paper { fill: #14171c; } .grid { stroke: #2b313a; }
  .fill-own { fill: #5aaef0; } .line-own { stroke: #5aaef0; } .ring { stroke: #ff9d5c; } .plain { fill: #ff9d5c; }
  .square { fill: #b79cf0; }
}
"""
Point = tuple[str, float, float]


def points() -> dict[str, list[Point]]:
    """Workload -> contestant, MiB and the factor of the time without a limit."""
    rows = json.loads((ROOT / "results" / "limits_curve.json").read_text(encoding="utf-8"))["rows"]
    found: dict[str, list[Point]] = {}
    for row in rows:
        if row["device"] == "predicted":
            figures = row["figures"]
            title = f"{NAMES[figures['workload']]}, batch {figures['batch']}"
            found.setdefault(title, []).append((figures["contestant"], row["value"], row["ratio"]))
    return found


def kind_of(name: str) -> str:
    return KINDS[next(kind for kind in KINDS if name.startswith(kind))][0]


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def mark(kind: str, x: float, y: float) -> str:
    if kind == "own":
        return f'<circle class="fill-own" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    if kind == "ring":
        return f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    if kind == "square":
        return f'<rect class="square" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    return f'<circle class="plain" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def panel(title: str, found: list[Point], left: float, top: float) -> list[str]:
    most = max(mib for _, mib, _ in found) / 1024
    step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 20) if most / s <= 5)
    right = math.ceil(most / step) * step
    high = max(1.5, math.ceil(max(factor for _, _, factor in found) * 10) / 10)
    low = 0.9

    def x(mib: float) -> float:
        return left + PLOT * mib / 1024 / right

    def y(factor: float) -> float:
        return top + TALL * (high - factor) / (high - low)

    parts = [text(left, top - 10, title, "bold")]
    for n in range(1, round(right / step) + 1):
        at = x(1024 * n * step)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{top + TALL}"/>')
        parts.append(text(at, top + TALL + 15, f"{n * step:g}", "soft", "middle"))
    for tenths in range(10, round(high * 10) + 1, 1 if high <= 1.6 else 2):
        parts.append(
            f'<line class="grid" x1="{left}" y1="{y(tenths / 10):.1f}" x2="{left + PLOT}" y2="{y(tenths / 10):.1f}"/>'
        )
        parts.append(text(left - 5, y(tenths / 10) + 4, f"{tenths / 10:.1f}", "soft", "end"))
    parts.append(f'<path class="axis" fill="none" d="M{left} {top}V{top + TALL}H{left + PLOT}"/>')
    own = sorted((mib, factor) for name, mib, factor in found if kind_of(name) == "own")
    line = " ".join(f"{x(mib):.1f},{y(factor):.1f}" for mib, factor in own)
    parts.append(f'<polyline class="line-own" points="{line}"/>')
    return parts + [mark(kind_of(name), x(mib), y(factor)) for name, mib, factor in found]


def draw() -> str:
    table = points()
    height = TOP + HEIGHT * -(-len(table) // COLUMNS) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Memory against time of a training step</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(16, 24, "Predicted time of a step (factor of its time without a limit) over GiB of memory", "title"),
    ]
    shown = {kind_of(name) for found in table.values() for name, *_ in found}
    for n, (kind, words) in enumerate(value for value in KINDS.values() if value[0] in shown):
        parts += [mark(kind, 22 + 182 * n, 42), text(32 + 182 * n, 46, words, "soft")]
    for n, (title, found) in enumerate(table.items()):
        parts += panel(title, found, LEFT + PANEL * (n % COLUMNS), TOP + 8 + HEIGHT * (n // COLUMNS))
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
