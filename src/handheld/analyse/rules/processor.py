"""A better processor in the same machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handheld.analyse.roofline import Ceiling
from handheld.analyse.rules.base import STEP, Advice, Change, Gain
from handheld.analyse.rules.command import command

if TYPE_CHECKING:
    from handheld.analyse.run import Run

LEAST = 1.3  # times faster that the other processor must be
ERROR = 4.0  # Times by which a prediction from ceilings alone may be wrong (docs/cost.md).
REACHED = 0.3  # share of its ceilings that kernels reach on another device at most


def processor(run: Run) -> Advice | None:
    bound, step_ms, parts = run.bound(), run.step_ms()[0], run.parts()
    if not bound.ops or not step_ms or parts is None or bound.ops_reached is None:
        return None
    ops = [row for row in run.ops() if row.graph == run.graph and row.ms]
    others = []
    for other in run.meta.get("devices") or ():
        ceiling = Ceiling.of(other.get("ceilings"))
        if ceiling is None:
            continue
        reached = max(min(bound.ops_reached, REACHED), 0.05)
        ms = sum(max(ceiling.least_ms(row).work / reached, ceiling.least_ms(row).launches) for row in ops)
        others.append((ms, str(other["device"]), str(other.get("name") or other["device"])))
    if not others or min(others)[0] * LEAST > step_ms:
        return None
    ms, device, name = min(others)
    return Advice(
        rule="processor",
        seen=f"a step takes {step_ms:.3g} ms here; by its ceilings, {name} would need about {ms:.3g} ms",
        costs_ms=step_ms - ms,
        change=f"train on {device}",
        gain=Gain(STEP, step_ms, ms, ms / ERROR, min(ms * ERROR, step_ms)),
        command=command(run, f"--on {device}"),
        to=Change(on=device),
    )
