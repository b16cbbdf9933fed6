"""The report card: what trains here, at which batch, how fast, for how many joules, on what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from handheld.bench.folder import Row


def card(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """A line a workload: on which device it is fastest and at which batch, what that takes, the
    best of each other device beside it; or why it trains nowhere."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["size"]), []).append(row)
    return [_line(*key, group) for key, group in groups.items()]


def _line(workload: str, size: str, rows: list[Row]) -> dict[str, Any]:
    timed = [row for row in rows if row["status"] == "trained" and row.get("samples_s")]
    best: dict[str, Row] = {}
    for row in sorted(timed, key=lambda row: -row["samples_s"]):
        best.setdefault(row["device"], row)
    line: dict[str, Any] = {
        "workload": workload,
        "size": size,
        "trains": bool(timed),
        "largest_batch": max((row["batch"] for row in timed), default=None),
    }
    if not timed:
        first = rows[0]
        return {
            **line,
            "status": first["status"],
            "reason": first["reason"],
            "planned_bytes": first.get("planned_bytes"),
        }
    first, *others = best.values()
    line |= {
        key: first.get(key)
        for key in (
            "device",
            "processor",
            "batch",
            "samples_s",
            "step_ms",
            "joules_sample",
            "rail",
            "planned_bytes",
            "parameters",
        )
    }
    line["others"] = [
        {
            "device": row["device"],
            "batch": row["batch"],
            "samples_s": row["samples_s"],
            "joules_sample": row.get("joules_sample"),
            "ratio": row["samples_s"] / first["samples_s"],
        }
        for row in others
    ]
    frugal = [row for row in timed if row.get("joules_sample")]
    line["least_joules"] = None
    if frugal:
        row = min(frugal, key=lambda row: row["joules_sample"])
        line["least_joules"] = {key: row[key] for key in ("device", "batch", "joules_sample")}
    line["not_trained"] = [
        {key: row.get(key) for key in ("device", "batch", "status", "reason", "planned_bytes")}
        for row in rows
        if row["status"] != "trained"
    ]
    return line
