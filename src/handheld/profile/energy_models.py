"""Energy models of devices in the user's cache folder, per device and driver."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from handheld import cache
from handheld.cost.energy import EnergyModel
from handheld.device import DeviceCaps

_BROKEN = (OSError, KeyError, TypeError, ValueError, AttributeError)


def path_of(caps: DeviceCaps) -> Path:
    known = f"{caps.name}\n{caps.driver}\n{caps.features}".rstrip("\n")
    key = hashlib.sha256(known.encode()).hexdigest()[:12]
    return cache.folder() / "energy" / f"{cache.slug(caps.name)}-{key}.json"


def store(model: EnergyModel, caps: DeviceCaps) -> Path:
    path = path_of(caps)
    cache.write_json(path, model.to_json())
    return path


def stored(caps: DeviceCaps) -> tuple[EnergyModel | None, str]:
    """The stored energy model of a device, and "". Or None and the reason why there is none that can be used."""
    path = path_of(caps)
    try:
        model = _read(path)
        if (model.device, model.driver) == (caps.name, caps.driver):
            return model, ""
    except FileNotFoundError:
        pass
    except _BROKEN:
        return None, f"the energy model of this device ({path}) cannot be read. Try: handheld doctor --energy"
    for other in sorted(path.parent.glob(f"{cache.slug(caps.name)}-*.json")):
        try:
            model = _read(other)
        except _BROKEN:
            continue
        if model.device == caps.name and model.driver != caps.driver:
            return None, (
                f"the energy model of this device was measured with another driver ({model.driver}; now "
                f"{caps.driver}), so it is not used. Try: handheld doctor --energy"
            )
    return None, "the energy model of this device was not measured. Try: handheld doctor --energy"


def _read(path: Path) -> EnergyModel:
    return EnergyModel.from_json(json.loads(path.read_text(encoding="utf-8")))
