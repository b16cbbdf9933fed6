"""Draws docs/images/peers.svg, the picture of README.md, from results/peers.json.

python scripts/draw_peers.py
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGE = ROOT / "docs" / "images" / "peers.svg"
SERIES = {"pocl-3.0": ("cpu", "CPU, 2 cores (PoCL)"), "h200": ("gpu", "NVIDIA H200")}
MEAN = "geometric mean of abcdefghi"
LEFT, TOP, ROW, BAR, SCALE, WIDTH = 182, 62, 30, 11, 430, 720
STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1d2129; }
.soft { fill: #5d6675; font-size: 12px; } .bold { font-weight: 600; } .title { font-size: 15px; font-weight: 600; }
.paper { fill: #fdfdfc; } .cpu { fill: #0b6bb8; } .gpu { fill: #d1590b; } line { stroke: #9aa4b2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee; } .soft { fill: #9aa4b2; } .paper { fill: #14171c; }
  .cpu { fill: #5aaef0; } .gpu { fill: #ff9d5c; }
}
"""


def ratios() -> dict[str, dict[str, float]]:
    """Workload -> device -> time relative to PyTorch, for the nine workloads and their mean."""
    rows = json.loads((ROOT / "results" / "peers.json").read_text(encoding="utf-8"))["rows"]
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["device"] in SERIES and row["against"] == "PyTorch" and (row["what"][0].islower()):
            table.setdefault(row["what"], {})[row["device"]] = row["ratio"]
    return {what: row for what, row in table.items() if len(row) == len(SERIES)}


def label(what: str) -> str:
    """`b mobilenet_v2 b32` is the workload with letter b at batch 32."""
    if what == MEAN:
        return "geometric mean"
    _, name, *rest = what.split()
    return " ".join((name, *(f"batch {word[1:]}" if word[0] == "b" else word for word in rest)))


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def draw() -> str:
    table = ratios()
    height = TOP + ROW * len(table) + 34
    one = LEFT + SCALE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Time per training step relative to PyTorch</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        text(16, 24, "Time per training step relative to PyTorch: shorter is faster", "title"),
    ]
    for n, (kind, words) in enumerate(SERIES.values()):
        parts.append(f'<rect class="{kind}" x="{16 + 190 * n}" y="36" width="{BAR}" height="{BAR}"/>')
        parts.append(text(33 + 190 * n, 46, words, "soft"))
    for n, (what, found) in enumerate(table.items()):
        y = TOP + ROW * n
        parts.append(text(LEFT - 10, y + BAR + 5, label(what), "bold" if what == MEAN else "", "end"))
        for k, (device, (kind, _)) in enumerate(SERIES.items()):
            length, top = found[device] * SCALE, y + k * (BAR + 1)
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}"/>')
            parts.append(text(LEFT + length + 6, top + BAR - 1, f"{found[device]:.2f}", "soft"))
    bottom = TOP + ROW * len(table)
    parts.append(f'<line x1="{one}" y1="{TOP - 6}" x2="{one}" y2="{bottom}" stroke-dasharray="4 3"/>')
    parts.append(text(one + 70, bottom + 18, "1.0: PyTorch eager, float32, on the same device", "soft", "end"))
    return "\n".join((*parts, "</svg>", ""))


if __name__ == "__main__":
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(), encoding="utf-8")
