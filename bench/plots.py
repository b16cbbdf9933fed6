"""What the benchmarks' plots share: one look, written where --plot says."""

from __future__ import annotations

from typing import Any

COLOURS = ("#3b6ea8", "#d1812b", "#4d9a5f", "#a94a54", "#7d67a8", "#7a7a7a")
INK, FAINT = "#222222", "#d9d9d9"


def pyplot() -> Any:
    """matplotlib, or a line that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("--plot needs matplotlib. Try: pip install 'handheld[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "text.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
        }
    )
    return plt


def save(figure: Any, path: str) -> None:
    figure.savefig(path, dpi=150)
    print(f"plot: {path}")


def clipped(axes: Any, bars: Any, values: list[float], most: float, text: str = "{:.1f}") -> None:
    """Bars above `most` end there and carry their value."""
    for bar, value in zip(bars, values, strict=True):
        if value > most:
            bar.set_height(most)
            axes.annotate(
                text.format(value), (bar.get_x() + bar.get_width() / 2, most), ha="center", va="bottom", fontsize=7
            )
