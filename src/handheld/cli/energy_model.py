"""The energy model of a device in `handheld doctor`: measures it, and shows what it knows."""

from __future__ import annotations

from collections.abc import Sequence

from handheld.cli import output
from handheld.cost.energy import EnergyModel, Rail
from handheld.device import DeviceCaps
from handheld.measure import ceilings
from handheld.profile import energy_models
from handheld.profile.calibrate import calibrate
from handheld.targets.names import on_option


def measure(name: str, caps: DeviceCaps) -> str:
    """Measure and store the energy model of a device. Returns "" or why that failed. After Ctrl-C nothing is stored."""
    with output.err.status("") as status:
        try:
            if ceilings.stored(caps) is None:
                ceilings.measure(name, lambda what, part: status.update(f"{name}: ceilings, {what} … ({part:.0%})"))
            model = calibrate(
                name, progress=lambda done, count, what: status.update(f"{name}: energy, {what} … ({done}/{count})")
            )
        except Exception as error:  # Drivers raise their own types of errors; the reason is shown.
            return f"the energy model could not be measured: {type(error).__name__}: {error}"
    energy_models.store(model, caps)
    return ""


def rows(model: EnergyModel | None, reason: str, caps: DeviceCaps, device: str) -> Sequence[tuple[str, str]]:
    """The lines that doctor shows."""
    if model is None:
        return [("energy", reason)]
    stale = energy_models.stale(model, caps.kind)
    ops = output.count(len(model.samples), "op")
    return [
        ("energy", f"model measured {model.date} with {ops} in {model.measuring_s:.0f} s"),
        *([("", f"{stale}. Try: handheld doctor --energy{on_option(device)}")] if stale else []),
        *(("", f"{rail.name}: {_rail(model, rail)}") for rail in model.rails),  # Names are too long for labels.
    ]


def _rail(model: EnergyModel, rail: Rail) -> str:
    samples = [s for s in model.samples if rail.name in s.joules]
    most = max(s.joules[rail.name] / s.seconds for s in samples)
    return (
        f"idle {rail.idle_watts:.3g} W, between launches {rail.gap_watts:.3g} W, ops up to {most:.3g} W; "
        f"held-out ops deviate by {rail.deviation:.0%}"
    )
