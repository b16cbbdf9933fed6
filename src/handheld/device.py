"""What a plan needs to know of a device: a description, not a device in hand.

`handheld doctor` writes one for each device it finds; descriptions of phones ship in
plan/devices/, so that plans for them are made and verified on any machine.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handheld.errors import DeviceError

#: Backends that were renamed: the old first part of a device's name, and today's. The old name is accepted wherever a
#: device is named, and files that were written with it still open.
ALIASES = {"torch": "reference"}


def canonical(device: str) -> str:
    """A device's name as it is today: `reference:cpu` for `torch:cpu`, and for itself."""
    backend, colon, rest = device.partition(":")
    return ALIASES.get(backend, backend) + colon + rest


def is_gpu(device: str, kind: str | None) -> bool:
    """Whether a GPU runs there. `kind` is that of its description, which for PyTorch does not say."""
    return kind == "gpu" or canonical(device).startswith(("reference:cuda", "pytorch:cuda"))


@dataclass(frozen=True, slots=True)
class DeviceCaps:
    """Sizes are bytes. `kind` is cpu or gpu for OpenCL, reference or null for the other backends."""

    name: str
    vendor: str
    kind: str
    driver: str
    compute_units: int
    max_work_group: int
    local_mem_bytes: int
    global_mem_bytes: int
    max_alloc_bytes: int
    base_align_bytes: int
    unified_memory: bool
    images: bool = False
    fp16: bool = False
    fp64: bool = False
    vector_width: int = 4  # floats in a register
    #: of the processor, which its compiler leaves out unless asked (backends/opencl/widen.py)
    features: str = ""

    def to_json(self) -> dict[str, Any]:
        """The description as plain data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> DeviceCaps:
        """What `to_json` gave, or DeviceError."""
        fields = {f.name for f in dataclasses.fields(DeviceCaps)}
        required = fields - {"images", "fp16", "fp64", "vector_width", "features"}
        if not isinstance(data, dict) or not required <= set(data) <= fields:
            raise DeviceError(f"a device description must have the fields {sorted(fields)}")
        return DeviceCaps(**{**data, "kind": canonical(str(data["kind"]))})

    @staticmethod
    def shipped(name: str) -> DeviceCaps:
        """A description that comes with Handheld, for example `adreno-740` or `mali-g78`."""
        folder = Path(__file__).parent / "plan" / "devices"
        path = folder / f"{name}.json"
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in folder.glob("*.json")))
            raise DeviceError(f"no shipped description of {name!r}; there are: {names}")
        return DeviceCaps.from_json(json.loads(path.read_text()))
