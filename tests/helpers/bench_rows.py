"""Artificial rows and results folders, for tests of the code that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import handheld
from handheld.bench.folder import Results, Writer

CAPS = {"name": "made up", "vendor": "nobody", "driver": "1", "kind": "gpu", "compute_units": 2}


def row(workload: str = "mlp", device: str = "opencl", batch: int = 4, **more: Any) -> dict:
    return {
        "key": f"{workload}/small/{batch}/{device}",
        "workload": workload,
        "size": "small",
        "device": device,
        "batch": batch,
        "status": "trained",
        "reason": "",
        "processor": "made up",
        "began": "2026-01-01T00:00:00+00:00",
        "samples_s": 100.0,
        "step_ms": 40.0,
        "joules_sample": None,
        "planned_bytes": 1000,
        "run": None,
        **more,
    }


def info(**more: Any) -> dict:
    return {
        "handheld": handheld.__version__,
        "created": "2026-01-01T00:00:00+00:00",
        "settings": {"seconds": 3.0, "steps": None, "seed": 0},
        "machine": {"cores": 2},
        "versions": {"python": "3.11"},
        "devices": {"opencl": CAPS},
        "cases": [],
        "base_celsius": {},
        **more,
    }


def folder(path: Path, rows: list[dict], **more: Any) -> Results:
    """A results folder on disk."""
    writer = Writer(path)
    writer.describe(info(**more))
    for one in rows:
        if one["run"]:
            (path / one["run"]).write_text(one["key"])
        writer.append(one)
    found = writer.open()
    writer.close()
    return found
