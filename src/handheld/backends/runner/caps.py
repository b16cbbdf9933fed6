"""Descriptions of a runner's devices. Names and numbers are those that the OpenCL backend gives the same device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from handheld.backends.matrix_units import matrix_units
from handheld.backends.names import device_name
from handheld.backends.runner.link import Link
from handheld.backends.runner.probe import RunnerProbe
from handheld.backends.vectors import rate_of, vectors_of
from handheld.device import DeviceCaps
from handheld.errors import DeviceError


@dataclass(frozen=True)
class RunnerDevice:
    """An OpenCL device of a runner under its stable name. `index` is its number in the runner."""

    name: str
    index: int
    caps: DeviceCaps
    #: What the runner said about it.
    described: dict[str, Any]


def devices_of(link: Link, described: dict[str, Any]) -> list[RunnerDevice]:
    """Returns the devices in a runner's description."""
    found: list[RunnerDevice] = []
    try:
        available = int(described["system"].get("available_bytes") or 0)
        for entry in described["devices"]:
            name = device_name(entry["platform"], entry["name"], [device.name for device in found])
            found.append(RunnerDevice(name, int(entry["index"]), _caps(link, entry, available), entry))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeviceError(
            f"{link.target.name}: the runner's description lacks {error}. "
            f"Try: handheld target clean --on {link.target.name}, so that the runner is sent again"
        ) from None
    return sorted(found, key=lambda device: device.caps.kind != "gpu")


def _caps(link: Link, entry: dict[str, Any], available: int) -> DeviceCaps:
    kind, unified = str(entry["kind"]), bool(entry["unified_memory"])
    memory = int(entry["global_mem_bytes"])
    if unified and available:
        memory = min(memory, available)
    plain = DeviceCaps(
        name=str(entry["name"]).strip(),
        vendor=str(entry["vendor"]).strip(),
        kind=kind,
        driver=f"{entry['platform_version'].strip()}; {entry['driver'].strip()}",
        compute_units=int(entry["compute_units"]),
        max_work_group=int(entry["max_work_group"]),
        local_mem_bytes=int(entry["local_mem_bytes"]),
        global_mem_bytes=memory,
        max_alloc_bytes=int(entry["max_alloc_bytes"]),
        base_align_bytes=int(entry["base_align_bytes"]),
        unified_memory=unified,
        images=bool(entry["images"]),
        fp16=bool(entry["fp16"]),
        fp64=bool(entry["fp64"]),
        vector_width=max(int(entry["vector_width"]), 1),
    )
    identity = str(entry["name"]), str(entry["platform_version"]), str(entry["driver"])
    probe = RunnerProbe(link, int(entry["index"]), plain)
    width, features = vectors_of(plain, identity, probe)
    units = matrix_units(plain, identity, probe)
    rate = rate_of(probe.processor(), width) if kind == "cpu" else 1
    return replace(plain, vector_width=width, vector_rate=rate, features=features or units)
