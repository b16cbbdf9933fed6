"""The best device and batch of a table of costs, and the reason in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handheld.errors import HandheldError
from handheld.placement.table import CostTable, Entry
from handheld.store.record import Record

#: What a choice may be for.
GOALS = ("time", "energy", "memory")
#: Of batches whose goal differs by less than this share, the smallest is taken: it learns in as many steps, and needs
#: less memory.
EQUAL = 0.02


@dataclass(frozen=True)
class Choice(Record):
    """The best entry of those that were compared. `sure` says that it is the best whatever the error of the
    predictions; `close` are the devices that may be better within that error."""

    device: str
    batch: int
    goal: str
    value: float
    reason: str
    sure: bool
    close: tuple[str, ...] = ()


@dataclass(frozen=True)
class Range(Record):
    """A device that is the best from one batch to another."""

    device: str
    first: int
    last: int
    reason: str
    #: The batches at which this is certain whatever the error of the predictions.
    sure: tuple[int, ...]


def check_goal(goal: str) -> str:
    if goal not in GOALS:
        raise HandheldError(
            f"--for {goal:.40} is no goal. Try: --for {', --for '.join(GOALS[:-1])} or --for {GOALS[-1]}"
        )
    return goal


def value_of(entry: Entry, goal: str) -> float | None:
    """What the goal wants least of: seconds or joules per sample, or bytes. None if it is not known."""
    if goal == "energy":
        return entry.joules_per_sample
    if goal == "memory":
        return None if entry.bytes is None else float(entry.bytes)
    return entry.seconds_per_sample


def interval_of(entry: Entry, goal: str) -> tuple[float, float]:
    """The range of the value in nine of ten cases. Bytes are exact."""
    cost = entry.cost
    assert cost is not None
    if goal == "energy":
        whole = [rail for rail in cost.joules if not rail.part_of]
        return sum(r.low_joules for r in whole) / entry.batch, sum(r.high_joules for r in whole) / entry.batch
    if goal == "memory":
        return float(cost.bytes), float(cost.bytes)
    return cost.low_s / entry.batch, cost.high_s / entry.batch


def best_at(table: CostTable, batch: int, goal: str) -> Choice | None:
    """The best device at a batch; None if no value is known there."""
    found = _ranked(table.at(batch), goal)
    return _choice(found, goal) if found else None


def best(table: CostTable, goal: str, batch: int | None = None) -> Choice:
    """The best device and batch of the whole table, or of one batch. Raises HandheldError if nothing is known.

    For energy, every device needs an energy model: one that has none could be better.
    """
    check_goal(goal)
    if goal == "energy":
        missing = [known for known in table.known if known.no_joules]
        if missing:
            names = "; ".join(f"{known.candidate.device}: {known.no_joules}" for known in missing)
            raise HandheldError(f"--for energy needs an energy model of each device. {names}")
    entries = [entry for entry in table.entries if batch in (None, entry.batch)]
    found = _ranked(entries, goal)
    if not found:
        why = next((entry.why for entry in entries if entry.why), "no batch was looked at")
        raise HandheldError(f"no device can be chosen for {table.model}: {why}")
    least = value_of(found[0], goal)
    assert least is not None
    equal = [entry for entry in found if (value_of(entry, goal) or 0.0) <= least * (1 + EQUAL)]
    smallest = min(equal, key=lambda entry: (entry.device != found[0].device, entry.batch))
    # Other batches of the same device are no rivals: their order is known better than the error of one of them.
    rivals = [entry for entry in found if entry.device != smallest.device and entry.batch == smallest.batch]
    return _choice([smallest, *rivals], goal)


def ranges(table: CostTable, goal: str) -> list[Range]:
    """Which device is the best, from which batch to which."""
    found: list[Range] = []
    for batch in table.batches:
        choice = best_at(table, batch, goal)
        if choice is None:
            continue
        sure = (batch,) if choice.sure else ()
        if found and found[-1].device == choice.device:
            before = found[-1]
            found[-1] = Range(before.device, before.first, batch, before.reason, (*before.sure, *sure))
        else:
            found.append(Range(choice.device, batch, batch, choice.reason, sure))
    return found


def _ranked(entries: Sequence[Entry], goal: str) -> list[Entry]:
    known = [(value, entry) for entry in entries if (value := value_of(entry, goal)) is not None]
    return [entry for _, entry in sorted(known, key=lambda pair: pair[0])]


def _choice(found: Sequence[Entry], goal: str) -> Choice:
    first, value = found[0], value_of(found[0], goal)
    assert value is not None
    high = interval_of(first, goal)[1]
    close = tuple(entry.device for entry in found[1:] if interval_of(entry, goal)[0] < high)
    return Choice(first.device, first.batch, goal, value, _reason(found, goal), not close, close)


def _reason(found: Sequence[Entry], goal: str) -> str:
    """Why the first entry is the best, in words."""
    first = found[0]
    own = f"a step is bound by {WORDS[first.bound]} there"
    rivals = [entry for entry in found[1:] if entry.batch == first.batch]
    if not rivals:
        return own
    second = rivals[0]
    a, b = value_of(first, goal), value_of(second, goal)
    assert a is not None and b is not None
    factor = b / a if a else 1.0
    if first.bound == second.bound:
        why = f"both are bound by {WORDS[first.bound]}"
    else:
        why = f"{own}, and by {WORDS[second.bound]} on {second.device}"
    return f"{why}; {second.device} needs {factor:.3g} times the {QUANTITY[goal]}"


#: What limits a step, in words.
WORDS = {
    "host": "the host that enqueues it",
    "launches": "its launches",
    "memory": "memory traffic",
    "compute": "arithmetic",
    "transfers": "its transfers",
}
QUANTITY = {"time": "time per sample", "energy": "joules per sample", "memory": "memory"}
