"""Checks a driver once, and finds ways around what it computes wrongly."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from handheld.backends.base import describe
from handheld.callers import warn_user
from handheld.device import DeviceCaps
from handheld.drivers.halves import Asked
from handheld.drivers.halves import problems as problems_of
from handheld.drivers.runner import Results, Runner
from handheld.drivers.sketch import Sketch
from handheld.drivers.store import Failure, Truth, keep, kernels_hash, known
from handheld.errors import DeviceError, TargetLost
from handheld.plan.lowering import FAMILIES, family
from handheld.plan.precision import HALF_COMPUTE
from handheld.plan.quirks import known_avoid, simulated
from handheld.plan.ways import NONE, SUFFIXES, others, parsed, written

#: Set to `off`, a driver that was never seen is used without a check.
VARIABLE = "HANDHELD_DRIVER_CHECK"


def turned_off() -> bool:
    """Whether drivers that were never seen are used without a check."""
    return os.environ.get(VARIABLE, "").lower() in ("off", "0", "no")


def described(device: str, precision: str = "float32") -> DeviceCaps:
    """The description of a device, with what its driver computes wrongly in `avoid`, up to a precision.

    A driver that was never seen is checked first, which takes some seconds. HANDHELD_DRIVER_CHECK=off prevents that.
    """
    caps = describe(device)
    if not caps.takes_launches:
        return caps
    for name in checked_for(caps, precision):
        truth = known(caps, name)
        if truth is None and not turned_off():
            try:
                truth = check(device, caps, precision=name)
            except TargetLost:
                raise
            except DeviceError as error:
                warn_user(f"the driver of {device} could not be checked: {error}")
        caps = avoiding(caps, truth, name)
    return caps


def checked_for(caps: DeviceCaps, precision: str) -> list[str]:
    """The precisions that are checked for a plan, the most exact first."""
    names = list(SUFFIXES)
    wanted = names[: names.index(precision) + 1] if precision in names else names[:1]
    return [name for name in wanted if name != HALF_COMPUTE or caps.fp16]


def described_so_far(device: str) -> DeviceCaps:
    """The same without a check: a driver that was never seen may compute wrongly."""
    caps = describe(device)
    return avoiding(caps, known(caps)) if caps.takes_launches else caps


def avoiding(caps: DeviceCaps, truth: Truth | None, precision: str = "float32") -> DeviceCaps:
    """The description with what a check found, or with what is known without one."""
    if precision != "float32":
        return caps if truth is None else replace(caps, avoid=written({**parsed(caps.avoid), **parsed(truth.avoid)}))
    return replace(caps, avoid=known_avoid(caps) if truth is None else truth.avoid)


def check(device: str, caps: DeviceCaps, patient: bool = False, precision: str = "float32") -> Truth:
    """Run every kernel family in its usual way, and those that are wrong in other ways. The result is stored.

    For a precision with halves, the description must avoid what is wrong in the more exact ones.

    With a slow compiler some problems are left out, unless `patient`. Raises DeviceError if nothing can be run, or if
    the target is lost, which says nothing about the driver's results.
    """
    begun, large, exact = time.monotonic(), not simulated(caps), precision == "float32"
    problems = problems_of(large, precision)
    with Runner(device, large, patient, Asked(precision, "" if exact else caps.avoid)) as runner:
        usual = runner.run("", problems)
        if all("" in wrong for wrong in usual.values()):
            raise DeviceError(next(iter(usual.values()))[""])
        left_out = [sketch.name for sketch in problems if sketch.name not in usual]
        ways, failures = _searched(runner, caps, [sketch for sketch in problems if sketch.name in usual], usual)
    own = {op + SUFFIXES[precision]: way for op, way in ways.items()}
    truth = Truth(
        caps.name,
        caps.vendor,
        caps.driver,
        kernels_hash(),
        time.strftime("%Y-%m-%d"),
        round(time.monotonic() - begun, 1),
        len(usual),
        large,
        written({**parsed(known_avoid(caps)), **own} if exact else own),
        tuple(failures),
        tuple(left_out),
        precision,
    )
    keep(truth, caps)
    return truth


def _searched(
    runner: Runner, caps: DeviceCaps, problems: Sequence[Sketch], usual: Results
) -> tuple[dict[str, str], list[Failure]]:
    """The ways around what is wrong in the usual way, and all failures."""
    failures = _failures("", usual)
    bad = {op for sketch in problems for op in _blamed(sketch, usual)}
    ways: dict[str, str] = {}
    for members in _families(bad):
        chosen = sorted((s for s in problems if set(s.ops) & set(members)), key=lambda s: not usual[s.name])
        tried = _try_ways(runner, others(caps), chosen, usual)
        failures += [failure for way, results in tried.items() for failure in _failures(way, results)]
        ways |= _chosen(members, bad, chosen, tried)
    return ways, failures


def _try_ways(runner: Runner, ways: Iterable[str], chosen: Sequence[Sketch], usual: Results) -> dict[str, Results]:
    """Way -> its results, until one is right everywhere. What failed in the usual way comes first: if it fails again,
    the rest is not run."""
    tried: dict[str, Results] = {}
    for way in ways:
        tried[way] = runner.run(way, [s for s in chosen if usual[s.name]])
        if not any(tried[way].values()):
            tried[way] |= runner.run(way, [s for s in chosen if not usual[s.name]])
            if not any(tried[way].values()):
                break
    return tried


def _failures(way: str, results: Results) -> list[Failure]:
    return [Failure(name, op, way, error) for name, wrong in results.items() for op, error in wrong.items()]


def _blamed(sketch: Sketch, results: Results) -> set[str]:
    """The ops of a problem that are wrong, or were not run."""
    wrong = results.get(sketch.name, {"": "not run"})
    return set(sketch.ops) if "" in wrong else set(wrong)


def _families(bad: Iterable[str]) -> list[list[str]]:
    """All ops of each family that has a wrong one."""
    names = {family(op) for op in bad}
    return [[op for op in FAMILIES if family(op) == name] for name in sorted(names)]


def _chosen(members: list[str], bad: set[str], chosen: Sequence[Sketch], tried: dict[str, Results]) -> dict[str, str]:
    """The way of each op of a family: the first that is right for all of them, else for the op alone."""
    wrong = {way: {op for s in chosen for op in _blamed(s, results)} & set(members) for way, results in tried.items()}
    for way, ops in wrong.items():
        if not ops:
            return dict.fromkeys(members, way)
    return {op: next((way for way, ops in wrong.items() if op not in ops), NONE) for op in members if op in bad}
