"""The samples of a device: runs add to a table in the user's cache folder; tables of some devices come with Handheld.

A table belongs to one device, with its driver and its number of compute units. Samples of a kernel family that has
changed since are left out. Those of other families stay, and so does what steps took besides their ops.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from handheld import cache
from handheld.analyse.run import Run
from handheld.analyse.samples import op_samples, step_sample
from handheld.callers import warn_user
from handheld.cost.rates import Rates
from handheld.cost.samples import Samples, StepSample
from handheld.device import DeviceCaps
from handheld.errors import HandheldError, SamplesError
from handheld.kernels.versions import current
from handheld.measure import ceilings
from handheld.plan.lowering import family
from handheld.units import count

SHIPPED = Path(__file__).parent / "samples"


def path_of(caps: DeviceCaps) -> Path:
    """The user's table of a device."""
    return cache.folder() / "costs" / f"{cache.slug(caps.name)}-{caps.fingerprint}.json"


def read(path: Path) -> Samples:
    """Reads a table. Raises SamplesError."""
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        return Samples.from_json(data)
    except OSError as error:
        raise SamplesError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        raise SamplesError(
            f"{path} is not a table of samples, or it is damaged. Try: delete it, then handheld cost --learn FILE.run"
        ) from None


@dataclass(frozen=True)
class Known:
    """The samples of a device, and messages about tables that were not used."""

    samples: Samples
    ignored: tuple[str, ...] = ()


def known(caps: DeviceCaps) -> Known:
    """All samples of this device and driver. Raises SamplesError if the user's table is damaged."""
    table = Samples(caps.name, caps.driver, caps.kind)
    ignored = []
    for path in _files(caps):
        found = read(path)
        if found.driver != caps.driver:
            ignored.append(
                f"{path.name} is not used: it was measured with the driver {found.driver}, but this is {caps.driver}"
            )
            continue
        if path.parent != SHIPPED and path != path_of(caps):
            ignored.append(
                f"{path.name} is not used: it is of a machine with another number of compute units, or was made by an "
                "earlier version of Handheld"
            )
            continue
        if stale := _drop_stale(found, caps.kind):
            ignored.append(f"{path.name}: {stale}. Try: handheld profile MODEL, with what you train")
        table.merge(found)
    return Known(table, tuple(ignored))


def _files(caps: DeviceCaps) -> list[Path]:
    """The tables that may be for this device: shipped ones, those of other drivers, and the user's own last."""
    own = path_of(caps)
    named = f"{cache.slug(caps.name)}-*"
    return [
        *sorted(SHIPPED.glob(f"{named}.json.gz")),
        *sorted(own.parent.glob(f"{named}.json"), key=lambda p: p == own),
    ]


def shipped(kind: str) -> list[Known]:
    """The tables that come with Handheld for devices of a kind (cpu, gpu), for predictions of other devices."""
    tables = [read(path) for path in sorted(SHIPPED.glob("*.json.gz"))]
    return [
        Known(table, (f"{table.device}: {stale}",) if (stale := _drop_stale(table, kind)) else ())
        for table in tables
        if table.kind == kind
    ]


def _drop_stale(table: Samples, kind: str) -> str:
    """Leaves out the ops of families whose kernels have changed. Steps that had such ops are no longer whole. Returns a
    text about what was left out, or ""."""
    now = current(kind)
    stale = {name for name, version in table.families.items() if now.get(name, version) != version}
    gone = {key for key, sample in table.ops.items() if family(sample.work.op) in stale}
    ops, steps = len(table.ops), sum(step.whole for step in table.steps)
    table.families = {**table.families, **now}
    if not gone:
        return ""
    table.steps = [_without(step, gone) if gone.intersection(step.works) else step for step in table.steps]
    table.ops = {key: sample for key, sample in table.ops.items() if key not in gone}
    return (
        f"samples of {', '.join(sorted(stale))} are not used, because the kernels have changed since; "
        f"{len(table.ops):,} of {ops:,} ops and {sum(step.whole for step in table.steps)} of {steps} steps are left"
    )


def _without(step: StepSample, gone: Collection[str]) -> StepSample:
    return replace(step, works=tuple(key for key in step.works if key not in gone), whole=False)


def of_runs(runs: Iterable[Run], caps: DeviceCaps | None = None) -> Samples:
    """The samples of runs of one device, which is that of the first run unless `caps` names it. Raises SamplesError if
    a run is of another device or driver, or if its ops were not timed."""
    table: Samples | None = None
    for run in runs:
        if "max_work_group" not in (run.meta.get("caps") or {}):
            raise SamplesError(
                f"{run.path} does not describe its device: it is a run of PyTorch, so nothing can be learned from it "
                "about a plan. Try: a run of handheld profile"
            )
        described = DeviceCaps.from_json(run.meta["caps"])
        caps = caps or described
        if described.fingerprint != caps.fingerprint:
            raise SamplesError(f"{run.path} was measured on {_named(described)}, not on {_named(caps)}")
        step = step_sample(run)
        if step is None:
            raise SamplesError(
                f"{run.path} has no times of ops, so nothing can be learned from it. Try: handheld profile MODEL on a "
                "device whose driver times commands, with more steps"
            )
        table = table or Samples(caps.name, caps.driver, caps.kind, _rates(caps), current(caps.kind))
        table.add(op_samples(run), [step])
    if table is None:
        raise SamplesError("there is no run to learn from")
    return table


def _named(caps: DeviceCaps) -> str:
    return f"{caps.name} ({caps.driver}; {count(caps.compute_units, 'compute unit')})"


def _rates(caps: DeviceCaps) -> Rates | None:
    stored = ceilings.stored(caps)
    return Rates.from_ceilings(stored.to_json()) if stored is not None else None


def learn(runs: Iterable[Run]) -> tuple[Samples, Path]:
    """Adds runs to the user's table of their device. Returns the table and its file."""
    runs = list(runs)
    new = of_runs(runs)
    path = path_of(DeviceCaps.from_json(runs[0].meta["caps"]))
    table = Samples(new.device, new.driver, new.kind, new.rates, new.families)
    if path.exists():
        before = read(path)
        _drop_stale(before, new.kind)
        table.merge(before)
    table.merge(new)
    cache.write_json(path, table.to_json())
    return table, path


def remember(run: Run) -> None:
    """Adds a run to the user's table, if it has what the table needs. A table that cannot be read or written is
    reported, and the run is not affected."""
    described = run.meta.get("caps") or {}
    if described.get("kind") not in ("cpu", "gpu") or not run.complete or step_sample(run) is None:
        return
    try:
        learn([run])
    except HandheldError as error:
        warn_user(f"this run is not added to the samples of its device: {error}")
