"""Measures how wrong predictions of cost are, on cases that were held out.

    python bench/predict.py FOLDER... [--ceilings FILE]... [--json FILE] [--ship] [--no-memory]
    python bench/predict.py FOLDER --make [--on opencl] [--size small] [--models a,b] [--batches 4,8] [--seconds 3]

Each folder has run files of one device. With `--make` they are made first (bench/predict_runs.py), and files that
exist are kept. `--ceilings` names the file of a device's ceilings, one per folder in the same order; the default is
what `handheld doctor --ceilings` stored.

    next steps       the rest of a run from its first quarter, half and three quarters
    other batches    a model at the other batches of its runs, from those at 8 and 32 (and from other models)
    memory           the bytes of a plan made from the description of the device beside what the run allocated; every
                     workload is captured and planned again, which takes minutes (not with --no-memory)
    another model    a model of which no run is known, from the runs of the others
    another device   the steps of each folder from its ceilings and the runs of each other folder

Errors are |predicted / measured - 1|: their median and 90th percentile. `--ship` writes them and the samples into the
package, for devices whose own runs are too few.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import predict_runs

from handheld import cache
from handheld.analyse.run import open_run
from handheld.analyse.samples import next_steps
from handheld.cost.heldout import Case, another_device, another_model, other_batches
from handheld.cost.rates import Rates
from handheld.cost.samples import Samples
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.forecast import model, store

PACKAGE = Path(model.__file__).parent
TARGETS = {
    "next_steps": (0.02, 0.05),
    "other_batches": (0.05, 0.12),
    "another_model": (0.12, 0.30),
    "memory": (0.01, 0.01),
}


@dataclass
class Device:
    """The runs of one device."""

    folder: Path
    samples: Samples
    rates: Rates
    next_steps: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def read(folder: Path, ceilings: Path | None, memory: bool) -> Device:
    """All runs of a folder. Runs without times of ops are reported and left out."""
    table: Samples | None = None
    errors: list[float] = []
    for path in sorted(folder.glob("*.run")):
        try:
            with open_run(path) as run:
                errors += next_steps(run)
                caps = DeviceCaps.from_json(run.meta["caps"])
                new = store.of_runs([run], caps)
        except HandheldError as error:
            print(f"{path.name} is left out: {error}", file=sys.stderr)
            continue
        if table is None:
            table = new
        else:
            table.merge(new)
    if table is None:
        raise SystemExit(f"{folder} has no run files that can be used")
    rates = model.read_rates(ceilings) if ceilings else table.rates
    if rates is None:
        raise SystemExit(
            f"the ceilings of {table.device} are not known. Try: handheld doctor --ceilings, or --ceilings FILE"
        )
    table.rates = rates
    return Device(folder, table, rates, errors, memory_errors(folder) if memory else [])


def memory_errors(folder: Path) -> list[float]:
    """The plan's bytes, made again from the description of the device, beside what the runs allocated."""
    errors = []
    for path in sorted(folder.glob("*.run")):
        with open_run(path) as run:
            settings, caps = run.meta.get("settings") or {}, DeviceCaps.from_json(run.meta["caps"])
            allocated = run.meta.get("allocated_bytes")
            what = str(settings.get("what", "")).removesuffix(f"_{settings.get('size')}")
        if not allocated or settings.get("size") not in ("small", "paper") or what not in predict_runs.suite.WORKLOADS:
            continue
        plan = predict_runs.planned(what, str(settings["size"]), int(settings["batch"]), caps)
        errors.append(abs(plan.bytes / allocated - 1))
    return errors


def summary(kind: str, errors: list[float]) -> dict[str, Any]:
    if not errors:
        return {"kind": kind, "cases": 0}
    median, p90 = float(np.median(errors)), float(np.percentile(errors, 90))
    target = TARGETS.get(kind)
    met = None if target is None else bool(median <= target[0] and p90 <= target[1])
    return {"kind": kind, "cases": len(errors), "median": round(median, 4), "p90": round(p90, 4), "met": met}


def rows(device: Device) -> dict[str, Any]:
    models = another_model(device.samples, device.rates)
    batches = other_batches(device.samples, device.rates)
    result = {
        "device": device.samples.device,
        "driver": device.samples.driver,
        "runs": len(device.samples.steps),
        "models": len(device.samples.models),
        "ops": len(device.samples.ops),
        "disturbed_runs": sum(step.disturbed for step in device.samples.steps),
        "errors": [
            summary("next_steps", device.next_steps),
            summary("other_batches", [case.error for case in batches]),
            summary("memory", device.memory),
            summary("another_model", [case.error for case in models]),
        ],
        "cases": {"another_model": [_case(c) for c in models], "other_batches": [_case(c) for c in batches]},
    }
    show(
        f"{result['device']}: {result['runs']} runs of {result['models']} models, {result['ops']} ops", result["errors"]
    )
    return result


def _case(case: Case) -> dict[str, Any]:
    return {**case.to_json(), "error": case.error}


def show(title: str, found: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n  {'':<16} {'cases':>6} {'median':>8} {'p90':>8}")
    for row in found:
        if not row["cases"]:
            print(f"  {row['kind']:<16} {0:>6}")
            continue
        mark = {None: "", True: "  met", False: "  not met"}[row.get("met")]
        print(f"  {row['kind']:<16} {row['cases']:>6} {row['median']:>8.1%} {row['p90']:>8.1%}{mark}")


def across(devices: list[Device]) -> list[dict[str, Any]]:
    """Each device from its ceilings and the runs of each other device."""
    found = []
    for one, other in itertools.permutations(devices, 2):
        errors = [case.error for case in another_device(one.samples, one.rates, other.samples, other.rates)]
        found.append({**summary("another_device", errors), "of": one.samples.device, "from": other.samples.device})
        show(f"{one.samples.device} from its ceilings and the runs of {other.samples.device}", found[-1:])
    return found


def ship(devices: list[Device], results: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Writes the samples, and the errors of each device for devices of its kind, into the package."""
    (PACKAGE / "samples").mkdir(exist_ok=True)
    for device in devices:
        kept = device.samples
        if any(step.disturbed for step in kept.steps):  # One run per model says as much about a disturbed device.
            first = {step.model: step for step in reversed(kept.steps)}
            kept = kept.only(lambda step, first=first: step is first[step.model])  # type: ignore[misc]
        text = json.dumps(kept.to_json(), separators=(",", ":")).encode()
        path = PACKAGE / "samples" / f"{cache.slug(device.samples.device)}-shipped.json.gz"
        path.write_bytes(gzip.compress(text, mtime=0))
        print(f"{path}: {path.stat().st_size:,} bytes")
    path = PACKAGE / "errors.json"
    tables = json.loads(path.read_text())
    tables |= {
        d.samples.kind: {**tables.get(d.samples.kind, {}), **shipped_errors(r, found)}
        for d, r in zip(devices, results, strict=True)
    }
    path.write_text(json.dumps(tables, indent=1) + "\n")


def shipped_errors(result: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """The errors of one device. Of predictions from another device, the worst of all counts for every kind."""
    rows = {
        row["kind"]: row | {"device": result["device"]}
        for row in result["errors"]
        if row["cases"] and row["kind"] != "memory"
    }
    worst = max(found, key=lambda row: row["p90"], default=None)
    rows |= {"another_device": worst | {"device": worst["of"]}} if worst else {}
    return {k: {n: row[n] for n in ("kind", "cases", "median", "p90", "device")} for k, row in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--ceilings", type=Path, action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--make", action="store_true")
    predict_runs.add_options(parser)
    options = parser.parse_args()
    if options.make:
        for folder in options.folders:
            predict_runs.make_all(folder, options)
    named = [*options.ceilings, *[None] * len(options.folders)]
    devices = [read(folder, file, not options.no_memory) for folder, file in zip(options.folders, named, strict=False)]
    results = [rows(device) for device in devices]
    found = across(devices)
    if options.json:
        options.json.write_text(json.dumps({"devices": results, "another_device": found}, indent=1) + "\n")
    if options.ship:
        ship(devices, results, found)


if __name__ == "__main__":
    main()
