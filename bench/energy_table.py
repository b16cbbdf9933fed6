"""The table and the chart of bench/energy.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import charts_page

from handheld.report.charts import Axis, points
from handheld.report.charts import Series as Points

METHODS = ("slope", "alone")
TIMED = tuple(f"{method} timed" for method in METHODS)
#: rows of the table; the step itself is not held out and is there for comparison
HELD_OUT = ("step", "forward", "other batch")
Row = dict[str, Any]


def say(row: Row) -> None:
    print(f"\n{row['workload']}, {row['rail']}: {row['watts']:.1f} W at work, {row['idle_watts']:.1f} W idle")
    kinds = (*METHODS, *TIMED, "mean power")
    print(f"{'J':24} {'counter':>10} {'±':>8}" + "".join(f" {kind:>16}" for kind in kinds))
    for name in (name for name in HELD_OUT if name in row):
        one = row[name]
        cells = "".join(
            f" {one[m]:9.4g} {one[m] / one['joules'] - 1:+6.1%}" if m in one else f" {'':16}" for m in kinds
        )
        held = "" if name == "step" else " (held out)"
        print(f"{name + held:24} {one['joules']:10.4g} {one['half']:8.2g}{cells}")
    if row["correlation"] is not None:
        print(
            f"the two methods, {len(row['signatures'])} signatures: correlation "
            f"{row['correlation']:.3f}, of ranks {row['rank_correlation']:.3f}"
        )
    if "problem" in row:
        print(f"no other batch: {row['problem']}")
    share = row["memory_share"]
    print(
        "memory's share of a step's energy: "
        + (f"{share:.1%}" if share is not None else "not measured: memory has no rail here")
    )


def say_planted(row: Row) -> None:
    print(f"\ntwo kernels of equal time, {row['rail']}")
    for method in METHODS:
        one = row[method]
        cells = "; ".join(
            f"{name} {one[name]['joules'] * 1e3:.4g} mJ ({one[name]['low_joules'] * 1e3:.4g} to "
            f"{one[name]['high_joules'] * 1e3:.4g}) in {one[name]['run_s'] * 1e3:.3f} ms"
            for name in ("arithmetic", "memory")
        )
        print(f"{method}: {cells}: {'distinguished' if one['told apart'] else 'not distinguished'}")


def plot(rows: list[Row], device: str, path: Path) -> None:
    """A chart of the two methods, with one point and its intervals per signature."""
    series = []
    for row in rows:
        slope, alone = ([one[method] for one in row["signatures"]] for method in METHODS)
        low, at, high = ([one[key] * 1e3 for one in alone] for key in ("low_joules", "joules", "high_joules"))
        x_low, x, x_high = ([one[key] * 1e3 for one in slope] for key in ("low_joules", "joules", "high_joules"))
        series.append(Points(f"{row['workload']}, {len(x)}", at, x, low, high, x_low, x_high))
    title = "Energy of a signature's ops by two methods"
    axes = (Axis(f"by {method}", "mJ", log=True) for method in METHODS)
    charts_page.write(path, title, device, points(title, series, *axes))
