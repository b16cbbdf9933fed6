"""The table and the chart of bench/kernels.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import charts_page
from result_file import Row, Value

from handheld.report.charts import Axis, Reference, Series, bars

HEAD = (
    f"{'':30} {'handheld':>9} {'torch':>9} us {'ratio':>6}   {'handheld':>9} {'torch':>9} "
    f"{'':7} {'share':>6} {'walked':>6} {'error':>6}  choice"
)


def line(result: dict[str, Any]) -> str:
    unit = "gflops" if result["flops"] else "gbs"
    again = f"{result['share_walked']:6.0%}" if result["read_again_bytes"] else f"{'':6}"
    error = "" if result["error"] is None else f"{result['error']:.0e}"
    text = (
        f"  {result['row']:28} {result['handheld_us']:9.1f} {result['torch_us']:9.1f}    "
        f"{result['ratio']:6.2f}   {result['handheld_' + unit]:9.1f} "
        f"{result['torch_' + unit]:9.1f} {'GFLOP/s' if result['flops'] else 'GB/s':7} "
    )
    text += f"{'small':>6} {'':6}" if result["small"] else f"{result['share']:6.0%} {again}"
    text += f" {error:>6}  {result['choice']:6}  {result['why']}"
    for best in result.get("candidates", [])[:3]:
        if "us" in best:
            rate = result["flops"] / best["us"] / 1e3
            text += (
                f"\n{'':30} {best['us']:9.1f} {'':22} {rate:9.1f} {best['error']:.0e} "
                f"{best['why']} {json.dumps(best['choice'])}"
            )
    return text


def mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summary(results: list[dict[str, Any]]) -> None:
    print("\ngeometric means of ratios, and of the shares of rows that are not small:")
    for family in dict.fromkeys(r["family"] for r in results):
        rows = [r for r in results if r["family"] == family]
        large = [r for r in rows if not r["small"]]
        shares = "all small"
        if large:
            shares = f"share {mean([r['share'] for r in large]):.0%}"
            if any(r["read_again_bytes"] for r in large):
                shares += f", walked {mean([r['share_walked'] for r in large]):.0%}"
        print(f"  {family:20} ratio {mean([r['ratio'] for r in rows]):5.2f} of {len(rows)}, {shares}")
    absent = [r for r in results if r["choice"] == "absent"]
    known = sum(r["choice"] != "—" for r in results)
    print(f"{len(absent)} of {known} shapes with variants are in no tuning record")


def result_rows(results: list[dict[str, Any]], device: str, facts: dict[str, Any]) -> list[Row]:
    """One row per family with geometric means; its figures hold the rows that the means are of."""
    means: list[Row] = []
    families: dict[str, list[dict[str, Any]]] = {}
    for r in results:  # Pointwise ops differ too much for one mean.
        op = r["row"].partition(" ")[2]
        families.setdefault(f"pointwise: {op}" if r["family"] == "pointwise" else r["family"], []).append(r)
    for family, rows in families.items():
        large = [r for r in rows if not r["small"]]
        details: dict[str, Value] = {"shapes": len(rows)}
        if any(r["read_again_bytes"] for r in large):
            details["walked %"] = 100 * mean([r["share_walked"] for r in large])
        share = 100 * mean([r["share"] for r in large]) if large else None
        ratio = mean([r["ratio"] for r in rows])
        figures = {"rows": rows, "run": facts}
        means.append(Row(family, device, share, "% of the ceiling", ratio, "PyTorch", details=details, figures=figures))
    return means


def plot(results: list[dict[str, Any]], device: str, path: Path) -> None:
    """Charts of the share of the ceiling and of the ratio to PyTorch: mean and range over the rows of each family."""
    shown = [r for r in results if not r["small"]]
    families = list(dict.fromkeys(r["family"] for r in shown))
    rows = [[r for r in shown if r["family"] == family] for family in families]

    def ranges(name: str, value: Callable[[dict[str, Any]], float]) -> Series:
        values = [[value(row) for row in family] for family in rows]
        return Series(name, [mean(v) for v in values], low=[min(v) for v in values], high=[max(v) for v in values])

    shares = bars(
        "Share of the measured ceiling",
        families,
        [ranges("Handheld", lambda r: 100 * r["share"]), ranges("PyTorch", lambda r: 100 * r["torch_share"])],
        Axis("share", "%"),
        references=[Reference(100.0, "the ceiling")],
        note="The ceiling is the device's arithmetic, or the same bytes only moved. Means and ranges of the rows.",
    )
    ratios = bars(
        "PyTorch's time divided by Handheld's",
        families,
        [ranges("ratio", lambda r: 1 / r["ratio"])],
        Axis("ratio", log=True),
        references=[Reference(1.0, "equal")],
    )
    charts_page.write(path, "Kernels", device, shares, ratios)
