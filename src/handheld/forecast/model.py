"""What is known about the speed of a device, and how it is known.

    runs         ops were measured on this device
    ceilings     only its ceilings were measured; ops reach the shares of them that they reach on a device of its kind
    description  even the ceilings come from public figures

The errors of predictions are those on held-out cases. They are computed from the runs of the device and stored beside
its samples. If there are too few runs, those of a device of its kind (cpu, gpu) count, which come with Handheld.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache as once
from pathlib import Path

from handheld import cache
from handheld.cost import step as overheads
from handheld.cost.heldout import HeldOut, another_model, other_batches
from handheld.cost.rates import Rates
from handheld.cost.samples import Samples
from handheld.cost.time import TimeModel
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.forecast.store import Known, known, path_of, shipped
from handheld.measure import ceilings

#: Ceilings of described devices, from public figures.
DESCRIBED = Path(__file__).parent.parent / "plan" / "ceilings"
#: Held-out errors need this many models, or they say little.
FEWEST_MODELS, FEWEST_BATCHES = 5, 6
#: And those of later steps this many runs.
FEWEST_RUNS = 5
#: Changes when errors are computed in another way, so that stored ones are computed again.
ERRORS_VERSION = 2


@dataclass(frozen=True)
class CostModel:
    """The times of ops and the overheads of steps on a device, with the errors by kind of prediction. `samples` is
    empty unless ops were measured on this device."""

    caps: DeviceCaps
    rates: Rates
    times: TimeModel
    overheads: overheads.Overheads
    samples: Samples
    #: `runs`, `ceilings` or `description`.
    derived: str
    why: str
    errors: Mapping[str, HeldOut]
    notes: tuple[str, ...] = ()
    #: The samples of the runs that the user named. A step that is among them is predicted from them alone.
    named: Samples | None = None


def cost_model(
    caps: DeviceCaps, name: str = "", more: Samples | None = None, measured: Rates | None = None
) -> CostModel:
    """What is known about a device. `name` is that of a shipped description. `more` are samples of runs that are not in
    the table, `measured` ceilings from a file. Raises DeviceError that says what to measure."""
    found = known(caps)
    samples = found.samples
    if more is not None:
        samples.merge(more)
    rates = measured or _measured(caps) or samples.rates
    if samples.ops and rates is not None:
        models = len({step.model for step in samples.steps})
        why = f"{len(samples.ops):,} ops of {models} {'model' if models == 1 else 'models'} were measured on it"
        times, costs = TimeModel(rates, list(samples.ops.values())), overheads.fit(samples, rates)
        errors, notes = _errors(caps, samples, rates), (*found.ignored, *_disturbed(samples))
        return CostModel(caps, rates, times, costs, samples, "runs", why, errors, notes, more)
    derived, empty = "ceilings", Samples(caps.name, caps.driver, caps.kind)
    if rates is None and name:
        rates, derived = described(name), "description"
    if rates is None:
        raise DeviceError(_nothing(caps, bool(samples.ops)))
    found_there = next((table for table in shipped(caps.kind) if table.samples.rates is not None), Known(empty))
    elsewhere = found_there.samples if found_there.samples.ops else None
    other = elsewhere.rates if elsewhere else None
    times = TimeModel(rates, list(elsewhere.ops.values()) if elsewhere and other else (), elsewhere=other)
    share = f"ops reach the shares of them that they reach on {elsewhere.device}" if elsewhere else "ops reach them"
    why = f"its ceilings were measured; {share}" if derived == "ceilings" else f"{rates.source}; {share}"
    errors, notes = usual_errors(caps.kind, caps.name), (*found.ignored, *found_there.ignored)
    return CostModel(caps, rates, times, overheads.from_rates(rates), empty, derived, why, errors, notes)


def _disturbed(samples: Samples) -> tuple[str, ...]:
    """What to say about samples of a processor that other processes used, too."""
    count = sum(step.disturbed for step in samples.steps)
    if not count:
        return ()
    return (
        f"{count} of {len(samples.steps)} known steps of this device were disturbed by other processes. Of these the "
        "fastest tenth counts for steps that were not measured. Try: handheld profile while nothing else runs",
    )


def _nothing(caps: DeviceCaps, samples: bool) -> str:
    """Why nothing can be predicted, and what to measure."""
    what = "ops were measured, but not its ceilings" if samples else "neither runs nor ceilings of it are known"
    return (
        f"no cost can be predicted on {caps.name}: {what}. Try: handheld doctor --ceilings, then handheld profile "
        "MODEL there; or --ceilings FILE with the ceilings that handheld doctor --ceilings wrote on that device"
    )


def _measured(caps: DeviceCaps) -> Rates | None:
    stored = ceilings.stored(caps)
    return Rates.from_ceilings(stored.to_json()) if stored is not None else None


def described(name: str) -> Rates | None:
    """The ceilings of a shipped description, from public figures; None if there are none."""
    path = DESCRIBED / f"{name}.json"
    return Rates.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def read_rates(path: Path) -> Rates:
    """Ceilings from a file: one that `handheld doctor --ceilings` stored, or figures like those in plan/ceilings/.
    Raises DeviceError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Rates.from_ceilings(data) if "fp32" in data else Rates.from_json(data)
    except OSError as error:
        raise DeviceError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise DeviceError(
            f"{path} has no ceilings of a device. Try: the file that handheld doctor --ceilings writes into the folder "
            "ceilings of the cache"
        ) from None


def _errors(caps: DeviceCaps, samples: Samples, rates: Rates) -> dict[str, HeldOut]:
    """The held-out errors of this device, from its file if they belong to these samples; else computed now."""
    path = path_of(caps).with_suffix(".errors")
    usual = usual_errors(caps.kind, caps.name)
    text = json.dumps([ERRORS_VERSION, samples.to_json(), rates.to_json()])
    digest = f"{zlib.crc32(text.encode()):08x}"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["samples"] == digest:
            return {**usual, **{k: HeldOut.from_json(v) for k, v in stored["errors"].items()}}
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        pass  # It is computed again.
    own: dict[str, HeldOut] = {}
    if len(samples.models) >= FEWEST_MODELS:
        found = HeldOut.of("another_model", [case.error for case in another_model(samples, rates)])
        own |= {"another_model": found} if found else {}
    cases = other_batches(samples, rates)
    batches = HeldOut.of("other_batches", [case.error for case in cases])
    if batches and batches.cases >= FEWEST_BATCHES:
        own["other_batches"] = batches
    runs = [timed.later for step in samples.steps for timed in step.timed if timed.later]
    later = HeldOut.of("next_steps", [error for errors in runs for error in errors])
    if later and len(runs) >= FEWEST_RUNS:
        own["next_steps"] = later
    cache.write_json(path, {"samples": digest, "errors": {kind: error.to_json() for kind, error in own.items()}})
    return {**usual, **own}


@once
def _shipped_errors() -> str:
    return (Path(__file__).parent / "errors.json").read_text(encoding="utf-8")


def usual_errors(kind: str, device: str = "") -> dict[str, HeldOut]:
    """The errors that bench/predict.py found on a device of this kind (docs/cost.md). If the kind is not known, each is
    the larger one. Those of `device` itself do not name it."""
    tables = json.loads(_shipped_errors())
    chosen = [tables[kind]] if kind in tables else list(tables.values())
    found: dict[str, HeldOut] = {}
    for error in (HeldOut.from_json(row) for table in chosen for row in table.values()):
        if error.kind not in found or error.p90 > found[error.kind].p90:
            found[error.kind] = replace(error, device="") if error.device == device else error
    return found
