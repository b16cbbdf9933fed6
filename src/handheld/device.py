"""The description of a device, which is all that a plan needs; the device itself need not be present.

`handheld doctor` writes one for each device that it finds. Descriptions of phones are in plan/devices/, so that plans
for them can be made and verified on any machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handheld.errors import DeviceError
from handheld.names import suggestion

#: Renamed backends: old first part of a device's name -> current one. Old names are still accepted everywhere, also in
#: files.
ALIASES = {"torch": "reference"}
_SHIPPED = Path(__file__).parent / "plan" / "devices"


def backend_of(device: str) -> str:
    """The backend of a device: the part of its name before the first colon or slash."""
    return re.split("[:/]", device, maxsplit=1)[0]


def takes_launches(device: str) -> bool:
    """Whether the name is that of an OpenCL device: of this machine, or one that a runner serves."""
    return backend_of(device) in ("opencl", "runner", "ssh", "adb")


def canonical(device: str) -> str:
    """The current name of a device: `torch:cpu` becomes `reference:cpu`; current names stay unchanged."""
    backend, colon, rest = device.partition(":")
    return ALIASES.get(backend, backend) + colon + rest


def is_gpu(device: str, kind: str | None) -> bool:
    """Whether the device is a GPU. `kind` is that of its description, which does not tell this for PyTorch."""
    return kind == "gpu" or canonical(device).startswith(("reference:cuda", "pytorch:cuda"))


@dataclass(frozen=True, slots=True)
class DeviceCaps:
    """The properties of a device. Sizes are in bytes. `kind` is cpu or gpu for OpenCL, reference or null for the other
    backends."""

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
    vector_rate: int = 1  # Registers of 16 floats that a core multiplies per cycle; 1 if that is not known.
    #: What a CPU's compiler does not use by default (plan/widen.py), or the matrix units of a GPU (`MATRIX` in
    #: kernels/contract_local.py).
    features: str = ""
    #: The ops that the driver computes wrongly with the usual kernels, and the way around it (plan/ways.py).
    avoid: str = ""

    @property
    def takes_launches(self) -> bool:
        """Whether a plan for it is made of OpenCL launches. Other backends run the nodes themselves."""
        return self.kind in ("cpu", "gpu")

    @property
    def fingerprint(self) -> str:
        """Stands for the device in the names of files with measurements. Two machines may have devices of one name and
        driver (PoCL calls every AMD EPYC the same), so the number of compute units counts too."""
        known = f"{self.name}\n{self.driver}\n{self.features}\n{self.compute_units}"
        return hashlib.sha256(known.encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The description as plain data."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> DeviceCaps:
        """The inverse of `to_json`. Raises DeviceError."""
        fields = {f.name for f in dataclasses.fields(DeviceCaps)}
        required = {f.name for f in dataclasses.fields(DeviceCaps) if f.default is dataclasses.MISSING}
        if not isinstance(data, dict) or not required <= set(data) <= fields:
            raise DeviceError(f"a device description must have the fields {sorted(fields)}")
        for field in dataclasses.fields(DeviceCaps):
            value = data.get(field.name, field.default)
            if type(value).__name__ != field.type:
                raise DeviceError(f"{field.name} of a device description must be {field.type}, not {value!r:.60}")
        return DeviceCaps(**{**data, "kind": canonical(str(data["kind"]))})

    @staticmethod
    def read(path: Path) -> DeviceCaps:
        """A description from a JSON file. Raises DeviceError."""
        try:
            return DeviceCaps.from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise DeviceError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError:
            raise DeviceError(
                f"{path} is no JSON file. Try: copy a description that handheld doctor --json prints"
            ) from None
        except DeviceError as error:
            raise DeviceError(f"{path}: {error}") from None

    @staticmethod
    def names() -> list[str]:
        """The names of the descriptions that come with Handheld."""
        return sorted(path.stem for path in _SHIPPED.glob("*.json"))

    @staticmethod
    def sources() -> dict[str, dict[str, list[str]]]:
        """For each description that comes with Handheld: its `sources`, and which values are `seen` there and which
        are `assumed`."""
        text = (_SHIPPED.parent / "device_sources.json").read_text(encoding="utf-8")
        rows: dict[str, dict[str, list[str]]] = json.loads(text)
        return rows

    @staticmethod
    def shipped(name: str) -> DeviceCaps:
        """A description that comes with Handheld, for example `adreno-740` or `mali-g78`."""
        names = DeviceCaps.names()
        if name not in names:
            hint = suggestion(name, names, f"one of: {', '.join(names)}")
            raise DeviceError(f"Handheld has no description of {name!r}. {hint}")
        return DeviceCaps.read(_SHIPPED / f"{name}.json")
