"""Two results folders side by side, or several made one."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from handheld.bench.folder import RUNS, Results, Writer
from handheld.bench.shapes import Comparison, Info, Mean, Pair, Row, Side
from handheld.errors import ResultsError

#: what is compared -> whether more is better
RATIOS = {"samples_s": True, "step_ms": False, "joules_sample": False, "planned_bytes": False}


def compare(a: Results, b: Results) -> Comparison:
    """A line a key with each one's numbers and b's over a's; the geometric mean of each ratio; and
    what is different besides, which may be why."""
    left, right = ({row["key"]: row for row in one.rows} for one in (a, b))
    lines = [_line(key, left.get(key), right.get(key)) for key in dict.fromkeys((*left, *right))]
    means: dict[str, Mean | None] = {}
    for name in RATIOS:
        found = [line["ratios"][name] for line in lines if line["ratios"].get(name)]
        means[name] = {"ratio": math.exp(sum(map(math.log, found)) / len(found)), "rows": len(found)} if found else None
    return {
        "a": str(a.folder),
        "b": str(b.folder),
        "rows": lines,
        "means": means,
        "differences": _differences(a.info, b.info),
    }


def _line(key: str, a: Row | None, b: Row | None) -> Pair:
    one = a or b
    assert one is not None
    ratios = {}
    for name in RATIOS:
        before, after = (_number(row, name) for row in (a, b))
        if before and after:
            ratios[name] = after / before
    return {
        "key": key,
        "workload": one["workload"],
        "size": one["size"],
        "device": one["device"],
        "batch": one["batch"],
        "a": _short(a),
        "b": _short(b),
        "ratios": ratios,
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
    }


def _differences(a: Info, b: Info) -> list[str]:
    found = []
    for name in ("handheld", "machine", "versions"):
        if a.get(name) != b.get(name):
            found.append(f"{name}: {_said(a.get(name))} / {_said(b.get(name))}")
    for name in ("seconds", "steps", "seed"):
        one, other = a.get("settings", {}).get(name), b.get("settings", {}).get(name)
        if one != other:
            found.append(f"{name}: {one} / {other}")
    for device in sorted({*a["devices"]} & {*b["devices"]}):
        for field in ("name", "driver"):
            one, other = a["devices"][device].get(field), b["devices"][device].get(field)
            if one != other:
                found.append(f"{device}: {one} / {other}")
    return found


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)


def merge(folders: Sequence[Results], out: str | Path) -> Results:
    """All their rows and run files in a new folder. Where two have a row of one key on processors
    of different names, both stay: the device then says where it was. Of one processor the one
    that trained counts, and of two such the later."""
    if len(folders) < 2:
        raise ResultsError("to merge takes two results folders or more")
    writer = Writer(out)
    try:
        if writer.open() is not None:
            raise ResultsError(f"{out} is a results folder already. Try: another --out")
        shared = _shared(folders)
        lines = [(one, _renamed(row, shared)) for one in folders for row in one.lines]
        devices = {
            _device(spec, caps["name"], shared): caps for one in folders for spec, caps in one.info["devices"].items()
        }
        cases = [case for one in folders for case in one.info["cases"]]
        writer.describe(
            {
                **folders[0].info,
                "devices": devices,
                "cases": list({str(case): case for case in cases}.values()),
                "merged": [
                    {"folder": one.folder.name, **{k: v for k, v in one.info.items() if k not in ("format", "cases")}}
                    for one in folders
                ],
            }
        )
        lines.sort(key=lambda item: (item[1]["status"] == "trained", item[1]["began"]))
        for one, row in lines:
            writer.append({**row, "run": _copied(one, row, writer)})
        merged = writer.open()
        assert merged is not None
        return merged
    finally:
        writer.close()


def _shared(folders: Sequence[Results]) -> set[str]:
    """Devices that are called alike in several folders and are not the same processor."""
    names: dict[str, set[str]] = {}
    for one in folders:
        for spec, caps in one.info["devices"].items():
            names.setdefault(spec, set()).add(caps["name"])
    return {spec for spec, found in names.items() if len(found) > 1}


def _device(spec: str, processor: str, shared: set[str]) -> str:
    return f"{spec} ({processor})" if spec in shared else spec


def _renamed(row: Row, shared: set[str]) -> Row:
    device = _device(row["device"], row["processor"], shared)
    pair = row["key"][: -len(row["device"])]
    return {**row, "device": device, "key": f"{pair}{device}"}


def _copied(one: Results, row: Row, writer: Writer) -> str | None:
    path = one.run_path(row)
    if path is None or not path.exists():
        return None
    target, number = path.name, 1
    while (writer.folder / RUNS / target).exists():
        number += 1
        target = f"{path.stem}-{number}.run"
    shutil.copyfile(path, writer.folder / RUNS / target)
    return f"{RUNS}/{target}"
