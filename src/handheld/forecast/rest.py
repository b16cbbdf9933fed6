"""Predicts the rest of a training from what it has cost so far: a run file, or the checkpoint of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handheld import package
from handheld.analyse.run import Run
from handheld.analyse.samples import disturbed, kind_of, next_steps
from handheld.analyse.window_times import step_ms
from handheld.cost.heldout import HeldOut
from handheld.errors import CheckpointError, HandheldError, RunFileError
from handheld.forecast.model import usual_errors
from handheld.run.history import History
from handheld.store.record import Record


@dataclass(frozen=True)
class RailCost(Record):
    """The joules that the rest will take on one rail."""

    rail: str
    joules: float
    low_joules: float
    high_joules: float
    #: `measured`, `estimate` (the run's own), or `given` (watts of the user).
    source: str


@dataclass(frozen=True)
class RestCost(Record):
    """What is left of a training: `count` steps or epochs of `each_s` seconds."""

    unit: str
    count: float
    each_s: float
    seconds: float
    low_s: float
    high_s: float
    error: HeldOut
    rails: tuple[RailCost, ...] = ()
    #: The share of the battery that the rest will take; None if its size or the power is not known.
    battery: float | None = None
    why_no_joules: str = ""
    #: Whether other processes made the steps so far longer.
    disturbed: bool = False


def rest_of_run(run: Run, steps: int, battery_wh: float | None = None, watts: float | None = None) -> RestCost:
    """What `steps` more steps of a run will cost. `watts` is used if the run has no power sensor."""
    each_ms = step_ms(run)
    if each_ms is None:
        raise RunFileError(f"{run.path} has no step times, so nothing can be predicted from it")
    seconds = each_ms * 1e-3
    error = _error(next_steps(run), kind_of(run), str((run.meta.get("caps") or {}).get("name", "")))
    total = seconds * steps
    low, high = error.interval(total)
    # A rail that is part of another one must not be added to it.
    found = tuple(
        _rail(row.rail, row.joules_step * steps, error, "estimate" if row.estimate else "measured")
        for row in run.energy()
        if row.joules_step is not None and not row.part_of
    )
    if not found and watts is not None:
        found = (_rail("given power", watts * total, error, "given"),)
    why = "" if found else "the run has no power sensor. Try: --watts W, the power of the device while it trains"
    share, noisy = _battery(found, battery_wh), disturbed(run)
    return RestCost("step", steps, seconds, total, low, high, error, found, share, why, noisy)


def _error(errors: list[float], kind: str, device: str = "") -> HeldOut:
    """The error of this run's own parts; that of other runs on such a device if it is larger, or if this run is too
    short to say."""
    own, usual = HeldOut.of("next_steps", errors), usual_errors(kind, device)["next_steps"]
    return own if own is not None and own.p90 > usual.p90 else usual


def _rail(name: str, joules: float, error: HeldOut, source: str) -> RailCost:
    return RailCost(name, joules, *error.interval(joules), source)


def _battery(found: tuple[RailCost, ...], battery_wh: float | None) -> float | None:
    if battery_wh is None or not found:
        return None
    return sum(row.joules for row in found) / (battery_wh * 3600)


def rest_of_checkpoint(
    path: Path, epochs: int | None = None, battery_wh: float | None = None, watts: float | None = None
) -> RestCost:
    """What is left of the training that wrote a checkpoint, up to its own number of epochs or to `epochs`."""
    _, meta = package.load_state(path)
    history, epoch, planned, partial = _progress(path, meta)
    wanted = epochs or planned
    if not wanted:
        raise CheckpointError(f"{path} does not say how many epochs the training has. Try: --epochs N")
    if epoch >= wanted:
        raise CheckpointError(f"the training of {path} is complete after {epoch} epochs. Try: --epochs N for more")
    # The first epoch of a process includes building the programs, so it only counts if it is the only one.
    times = [each.seconds for each in history.epochs[1:] or history.epochs]
    if not times:
        raise CheckpointError(
            f"{path} was written before the first epoch ended, so the time of an epoch is not known. Try: after it"
        )
    each = float(np.median(times))
    left = round(max(wanted - epoch - min(partial / each, 1.0), 0.0), 2)
    error = _error(
        [abs(float(np.median(times[:n])) / float(np.median(times[n:])) - 1) for n in range(2, len(times) - 1)],
        "",  # A checkpoint does not say where it was trained.
    )
    total = left * each
    rails = (_rail("given power", watts * total, error, "given"),) if watts is not None else ()
    why = "" if rails else "a checkpoint has no power readings. Try: --watts W, the power of the device while it trains"
    return RestCost("epoch", left, each, total, *error.interval(total), error, rails, _battery(rails, battery_wh), why)


def _progress(path: Path, meta: Mapping[str, Any]) -> tuple[History, int, int, float]:
    """The history, the epochs that are done and planned, and the seconds of the unfinished epoch."""
    try:
        return (
            History.from_json(meta["history"]),
            int(meta["epoch"]),
            int(meta.get("epochs", 0)),
            float(meta["partial"][3]),
        )
    except (KeyError, IndexError, TypeError, ValueError, HandheldError):
        raise CheckpointError(f"{path} is not a checkpoint of a training loop") from None
