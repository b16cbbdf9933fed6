"""The predicted cost of a model on several devices at several batches: one table for every choice of a place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from handheld.cost.energy import EnergyModel
from handheld.device import DeviceCaps, canonical, takes_launches
from handheld.errors import CaptureError, DeviceError, OutOfMemory
from handheld.forecast.model import CostModel, cost_model
from handheld.forecast.step import StepCost, predict
from handheld.limits.means import Allowed, plan_of_batch
from handheld.plan.plan import Plan
from handheld.profile import energy_models
from handheld.profile.inputs import graphs_in_turn
from handheld.run.fitting import Sizes
from handheld.run.parts import parts_of
from handheld.run.planning import requested
from handheld.step import Step
from handheld.store.record import Record

#: The batches that are looked at if nobody named any.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
#: A step is bound by transfers if they take this share of the device's time.
TRANSFERS = 0.5
#: What a training may do to fit if it is not asked for more.
AS_TRAINED = Allowed()


@dataclass(frozen=True)
class Candidate:
    """A device that may be chosen. `described` is the name of a description that comes with Handheld, or ""."""

    device: str
    caps: DeviceCaps
    described: str = ""


@dataclass(frozen=True)
class Entry(Record):
    """One device at one batch: its predicted cost, or why there is none."""

    device: str
    batch: int
    cost: StepCost | None = None
    why: str = ""

    @property
    def seconds_per_sample(self) -> float | None:
        return self.cost.seconds / self.batch if self.cost else None

    @property
    def joules_per_sample(self) -> float | None:
        """None without an energy model. A rail that is part of another one is not added to it."""
        if self.cost is None or not self.cost.joules:
            return None
        return sum(rail.joules for rail in self.cost.joules if not rail.part_of) / self.batch

    @property
    def bytes(self) -> int | None:
        return self.cost.bytes if self.cost else None

    @property
    def bound(self) -> str:
        """What limits the step: host, launches, memory, compute or transfers; "" if there is no cost."""
        if self.cost is None:
            return ""
        if self.cost.transfers_s > TRANSFERS * self.cost.device_s and self.cost.bound != "host":
            return "transfers"
        return self.cost.bound


@dataclass(frozen=True)
class Known:
    """What is known about a device: how its times are derived, and its energy model. `problem` is why its times cannot
    be predicted, `no_joules` why its joules cannot."""

    candidate: Candidate
    model: CostModel | None
    energy: EnergyModel | None
    problem: str = ""
    no_joules: str = ""


@dataclass(frozen=True)
class CostTable:
    """All entries, by device in the order of the candidates and by batch in rising order."""

    model: str
    known: tuple[Known, ...]
    batches: tuple[int, ...]
    entries: tuple[Entry, ...]

    @property
    def devices(self) -> list[str]:
        return [known.candidate.device for known in self.known]

    def at(self, batch: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.batch == batch]

    def of(self, device: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.device == device]

    def about(self, device: str) -> Known:
        return next(known for known in self.known if known.candidate.device == device)


def cost_table(
    name: str,
    step: Step,
    candidates: Sequence[Candidate],
    batches: Sequence[int] = BATCHES,
    *,
    graphs: Sequence[str] | None = None,
    precision: str = "float32",
    memory_limit_bytes: int | None = None,
    allowed: Allowed = AS_TRAINED,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> CostTable:
    """Predicts a training step of `step` on every device at every batch. Nothing runs. A device about which nothing is
    known has entries without a cost.

    Plans for a memory limit do what is `allowed` to fit, as those of a training; `options` are further ones of
    `step.plan`.
    """
    rows, entries, shared = [], list[Entry](), None
    for candidate in candidates:
        say(f"reading what is known about {candidate.caps.name}")
        known = _known(candidate)
        rows.append(known)
        if known.model is None:
            entries += [Entry(candidate.device, batch, None, known.problem) for batch in batches]
            continue
        limits = {"precision": precision, "memory_limit_bytes": memory_limit_bytes, **(options or {})}
        sizes = _sizes(step, candidate, graphs, limits)
        if shared is not None:
            sizes.step = shared  # A batch is captured once for all devices.
        shared = sizes.step
        entries += _entries(known, known.model, sizes, batches, allowed, say)
    return CostTable(name, tuple(rows), tuple(batches), tuple(entries))


def _known(candidate: Candidate) -> Known:
    if not candidate.caps.takes_launches:
        why = f"costs are predicted for plans of launches, and {candidate.device} has none. Try: handheld bench"
        return Known(candidate, None, None, why, why)
    energy, no_joules = energy_models.stored(candidate.caps, candidate.device)
    if no_joules:
        reason = no_joules.partition(". Try: ")[0]
        there = f"--on {candidate.device}" if takes_launches(candidate.device) else "on a machine that has this device"
        no_joules = f"{reason}. Try: handheld doctor --energy {there}"
    try:
        return Known(candidate, cost_model(candidate.caps, candidate.described), energy, "", no_joules)
    except DeviceError as error:
        return Known(candidate, None, energy, str(error), no_joules)


def _sizes(step: Step, candidate: Candidate, graphs: Sequence[str] | None, limits: Mapping[str, Any]) -> Sizes:
    request = requested(step, canonical(candidate.device), caps=candidate.caps, graphs=graphs, **limits)
    return Sizes(request.step, request.device, request.caps, request.names, request.options)


def _entries(
    known: Known, model: CostModel, sizes: Sizes, batches: Sequence[int], allowed: Allowed, say: Callable[[str], None]
) -> list[Entry]:
    found, full = [], ""
    device = known.candidate.device
    for batch in batches:
        if full:
            found.append(Entry(device, batch, None, full))
            continue
        say(f"planning a batch of {batch} for {device}")
        try:
            limited = sizes.options["memory_limit_bytes"] is not None
            described = known.candidate.described
            plan = plan_of_batch(sizes, batch, allowed, described) if limited else sizes.plan(batch)
        except OutOfMemory as error:
            full = f"does not fit: {str(error).partition('. ')[0]}"
            found.append(Entry(device, batch, None, full))
        except CaptureError as error:
            found.append(Entry(device, batch, None, str(error)))
        else:
            found.append(Entry(device, batch, predict(model, plan, trained(plan, batch), batch, known.energy)))
    return found


def trained(plan: Plan, batch: int) -> list[str]:
    """The graphs that a training step runs, one after the other; all graphs if none of them trains."""
    parts = parts_of(plan)
    if parts is not None:
        return [*[f"{parts.graph}.accumulate"] * (parts.count - 1), parts.graph]
    names = graphs_in_turn({name: entry.graph for name, entry in plan.graphs.items()}, batch)
    return [name for name in names if name in plan.graphs] or list(plan.graphs)
