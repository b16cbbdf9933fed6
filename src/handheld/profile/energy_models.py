"""Energy models of devices in the user's cache folder, per device and driver."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from handheld import cache
from handheld.cost.energy import EnergyModel
from handheld.device import DeviceCaps
from handheld.kernels.versions import current
from handheld.targets.names import on_option

_BROKEN = (OSError, KeyError, TypeError, ValueError, AttributeError)


def path_of(caps: DeviceCaps) -> Path:
    return cache.folder() / "energy" / f"{cache.slug(caps.name)}-{caps.fingerprint}.json"


def store(model: EnergyModel, caps: DeviceCaps) -> Path:
    path = path_of(caps)
    cache.write_json(path, model.to_json())
    return path


def stored(caps: DeviceCaps, device: str = "opencl") -> tuple[EnergyModel | None, str]:
    """The stored energy model of a device, and "". Or None and the reason why there is none that can be used. The
    reason says how to measure one on `device`."""
    path, command = path_of(caps), f"Try: handheld doctor --energy{on_option(device)}"
    try:
        model = _read(path)
        if (model.device, model.driver) == (caps.name, caps.driver):
            return model, ""
    except FileNotFoundError:
        pass
    except _BROKEN:
        return None, f"the energy model of this device ({path}) cannot be read. {command}"
    for other in sorted(path.parent.glob(f"{cache.slug(caps.name)}-*.json")):
        try:
            model = _read(other)
        except _BROKEN:
            continue
        if model.device == caps.name and model.driver != caps.driver:
            return None, (
                f"the energy model of this device was measured with another driver ({model.driver}; now "
                f"{caps.driver}), so it is not used. {command}"
            )
    return None, f"the energy model of this device was not measured. {command}"


def stale(model: EnergyModel, kind: str, used: Collection[str] | None = None) -> str:
    """Which kernel families have changed since the model was measured, as a text, or "". `used` are the families that
    count; by default all."""
    names = [name for name, version in sorted(current(kind).items()) if model.families.get(name) != version]
    changed = [name for name in names if used is None or name in used]
    if not changed:
        return ""
    return (
        f"the energy model of this device was measured with other kernels of {' and '.join(changed)}, so the joules of "
        "their ops may be off"
    )


def _read(path: Path) -> EnergyModel:
    return EnergyModel.from_json(json.loads(path.read_text(encoding="utf-8")))
