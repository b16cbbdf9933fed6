"""Compares two results folders, or merges several into one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from handheld.analyse.busy import warning_of_runs
from handheld.bench.folder import RUNS, Results, Writer
from handheld.bench.judged import by_spread, not_judged
from handheld.bench.shapes import Comparison, Info, Mean, Pair, Row, Side
from handheld.errors import ResultsError

#: What is compared, and whether more is better.
RATIOS = {"samples_s": True, "step_ms": False, "joules_sample": False, "planned_bytes": False}


def compare(a: Results, b: Results) -> Comparison:
    """One line per key with the figures of both folders and the ratio of b to a, the geometric mean of each ratio,
    and other differences between the folders, which may explain them."""
    left, right = ({row["key"]: row for row in results.rows} for results in (a, b))
    lines = [_line(key, left.get(key), right.get(key)) for key in dict.fromkeys((*left, *right))]
    means: dict[str, Mean | None] = {}
    for name in RATIOS:
        ratios = [line["ratios"][name] for line in lines if line["ratios"].get(name)]
        means[name] = (
            {"ratio": math.exp(sum(map(math.log, ratios)) / len(ratios)), "rows": len(ratios)} if ratios else None
        )
    return {
        "a": str(a.folder),
        "b": str(b.folder),
        "rows": lines,
        "means": means,
        "differences": _differences(a.info, b.info),
        "warnings": [
            f"{name} ({results.folder}): {text}"
            for name, results in (("a", a), ("b", b))
            if (text := disturbed(results))
        ],
    }


def disturbed(results: Results) -> str:
    """A warning if other processes held many cores during the runs of a folder, or ""."""
    return warning_of_runs(results.rows, results.info["machine"])


def _overlap(a: Row | None, b: Row | None) -> bool | None:
    """Whether the middle nine tenths of two rows' step times overlap. None if one of them is not known."""
    if a is None or b is None:
        return None
    (low, high), (other_low, other_high) = ((row.get("step_p5_ms"), row.get("step_p95_ms")) for row in (a, b))
    if low is None or high is None or other_low is None or other_high is None:
        return None
    return low <= other_high and other_low <= high


def _line(key: str, a: Row | None, b: Row | None) -> Pair:
    row = a or b
    assert row is not None
    ratios = {}
    for name in RATIOS:
        before, after = (_number(row, name) for row in (a, b))
        if before and after:
            ratios[name] = after / before
    return {
        "key": key,
        "workload": row["workload"],
        "size": row["size"],
        "device": row["device"],
        "batch": row["batch"],
        "a": _short(a),
        "b": _short(b),
        "ratios": ratios,
        "within_spread": _overlap(a, b),
        "judged": by_spread(a, b),
        "why": not_judged(a, b),
    }


def _number(row: Row | None, name: str) -> float | None:
    return cast("float | None", row.get(name)) if row else None


def _short(row: Row | None) -> Side | None:
    if row is None:
        return None
    return {
        "status": row["status"],
        "reason": row["reason"],
        "samples_s": row.get("samples_s"),
        "step_ms": row.get("step_ms"),
        "joules_sample": row.get("joules_sample"),
        "planned_bytes": row.get("planned_bytes"),
        "step_p5_ms": row.get("step_p5_ms"),
        "step_p95_ms": row.get("step_p95_ms"),
        "others_cores": row.get("others_cores"),
    }


def _differences(a: Info, b: Info) -> list[str]:
    texts = []
    for name in ("handheld", "machine", "versions"):
        if a.get(name) != b.get(name):
            texts.append(f"{name}: {_said(a.get(name))} / {_said(b.get(name))}")
    for name in ("seconds", "steps", "seed"):
        left, right = a.get("settings", {}).get(name), b.get("settings", {}).get(name)
        if left != right:
            texts.append(f"{name}: {left} / {right}")
    for device in sorted({*a["devices"]} & {*b["devices"]}):
        for field in ("name", "driver"):
            left, right = a["devices"][device].get(field), b["devices"][device].get(field)
            if left != right:
                texts.append(f"{device}: {left} / {right}")
    return texts


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return str(value)


def merge(folders: Sequence[Results], out: str | Path) -> Results:
    """Copy all rows and run files into a new folder.

    If two folders have the same key on processors with different names, both rows stay and the device
    names its processor. On the same processor, a row that trained wins over one that did not, and the
    later of two that trained.
    """
    if len(folders) < 2:
        raise ResultsError("--merge takes two results folders or more")
    writer = Writer(out)
    try:
        if writer.open() is not None:
            raise ResultsError(f"{out} is already a results folder. Try: another --out")
        shared = _shared(folders)
        lines = [(results, _renamed(row, shared)) for results in folders for row in results.lines]
        devices = {
            _device(spec, caps["name"], shared): caps
            for results in folders
            for spec, caps in results.info["devices"].items()
        }
        cases = [case for results in folders for case in results.info["cases"]]
        writer.describe(
            {
                **folders[0].info,
                "devices": devices,
                "cases": list({str(case): case for case in cases}.values()),
                "merged": [
                    {
                        "folder": results.folder.name,
                        **{k: v for k, v in results.info.items() if k not in ("format", "cases")},
                    }
                    for results in folders
                ],
            }
        )
        lines.sort(key=lambda item: (item[1]["status"] == "trained", item[1]["began"]))
        for results, row in lines:
            writer.append({**row, "run": _copied(results, row, writer)})
        merged = writer.open()
        assert merged is not None
        return merged
    finally:
        writer.close()


def _shared(folders: Sequence[Results]) -> set[str]:
    """Devices with the same name in several folders that are not the same processor."""
    names: dict[str, set[str]] = {}
    for results in folders:
        for spec, caps in results.info["devices"].items():
            names.setdefault(spec, set()).add(caps["name"])
    return {spec for spec, processors in names.items() if len(processors) > 1}


def _device(spec: str, processor: str, shared: set[str]) -> str:
    return f"{spec} ({processor})" if spec in shared else spec


def _renamed(row: Row, shared: set[str]) -> Row:
    device = _device(row["device"], row["processor"], shared)
    pair = row["key"][: -len(row["device"])]
    return {**row, "device": device, "key": f"{pair}{device}"}


def _copied(results: Results, row: Row, writer: Writer) -> str | None:
    path = results.run_path(row)
    if path is None or not path.exists():
        return None
    target, number = path.name, 1
    while (writer.folder / RUNS / target).exists():
        number += 1
        target = f"{path.stem}-{number}.run"
    shutil.copyfile(path, writer.folder / RUNS / target)
    return f"{RUNS}/{target}"
