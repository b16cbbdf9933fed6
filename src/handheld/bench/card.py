"""The report card: what trains here, at which batch, how fast, with how much energy, on which device."""

from __future__ import annotations

from collections.abc import Iterable

from handheld.bench.shapes import Beside, Frugal, Line, Row, Untrained


def card(rows: Iterable[Row]) -> list[Line]:
    """One line per workload: its fastest device and batch with their figures, and the best of every other
    device; or why it trains nowhere."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["size"]), []).append(row)
    return [_line(*key, group) for key, group in groups.items()]


def _line(workload: str, size: str, rows: list[Row]) -> Line:
    trained = [row for row in rows if row["status"] == "trained"]
    timed = [row for row in trained if row.get("samples_s")]
    best: dict[str, Row] = {}
    for row in sorted(timed, key=lambda row: -_rate(row)) or trained:
        best.setdefault(row["device"], row)
    line: Line = {
        "workload": workload,
        "size": size,
        "trains": bool(trained),
        "largest_batch": max((row["batch"] or 0 for row in trained), default=None),
    }
    if not trained:
        first = rows[0]
        return {
            **line,
            "status": first["status"],
            "reason": first["reason"],
            "planned_bytes": first.get("planned_bytes"),
        }
    first, *others = best.values()
    return {
        **line,
        "device": first["device"],
        "processor": first["processor"],
        "batch": first["batch"],
        "samples_s": first.get("samples_s"),
        "step_ms": first.get("step_ms"),
        "joules_sample": first.get("joules_sample"),
        "rail": first.get("rail"),
        "planned_bytes": first.get("planned_bytes"),
        "parameters": first.get("parameters"),
        "others": [_beside(row, first) for row in others if timed],
        "least_joules": _frugal(timed),
        "not_trained": [_untrained(row) for row in rows if row["status"] != "trained"],
    }


def _rate(row: Row) -> float:
    """Samples per second, or 0 if not known."""
    return row.get("samples_s") or 0.0


def _beside(row: Row, first: Row) -> Beside:
    return {
        "device": row["device"],
        "batch": row["batch"],
        "samples_s": _rate(row),
        "joules_sample": row.get("joules_sample"),
        "ratio": _rate(row) / _rate(first),
    }


def _frugal(rows: list[Row]) -> Frugal | None:
    choices: list[Frugal] = [
        {"device": row["device"], "batch": row["batch"], "joules_sample": joules}
        for row in rows
        if (joules := row.get("joules_sample"))
    ]
    return min(choices, key=lambda choice: choice["joules_sample"], default=None)


def _untrained(row: Row) -> Untrained:
    return {
        "device": row["device"],
        "batch": row["batch"],
        "status": row["status"],
        "reason": row["reason"],
        "planned_bytes": row.get("planned_bytes"),
    }
