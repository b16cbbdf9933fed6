"""`handheld doctor`: devices, versions, what is missing and what to do about it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib import metadata
from typing import Any

import psutil
import typer
from rich.table import Table
from rich.text import Text

import handheld
from handheld.backends import opencl
from handheld.backends.base import available_memory
from handheld.cli import probe, show
from handheld.cli.options import Json
from handheld.errors import DeviceError
from handheld.run import guards

_PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "torch",
             "scikit-learn", "pillow")


def doctor(json: Json = False) -> None:
    """What this machine can do: each device computes something small.

    Devices have stable names: what is printed here works as --on everywhere. Memory is what the
    system has free now, not the driver's total. The exit code is 1 if no device passes.

    \b
    Examples:
    handheld doctor
    handheld doctor --json > machine.json
    """
    report = examine()
    if json:
        show.print_json(report)
    else:
        present(report)
    if not any(device["passed"] for device in report["devices"]):
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything doctor knows, as plain data."""
    devices, notes = _devices()
    battery, heat = guards.battery(), guards.temperature()
    return {
        "handheld": handheld.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": available_memory(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "battery_percent": battery[0] if battery else None,
        "temperature_celsius": heat,
        "devices": devices,
        "notes": notes + _missing(),
    }


def _devices() -> tuple[list[dict[str, Any]], list[str]]:
    try:
        found = opencl.devices()
    except DeviceError as error:
        return [], [str(error)]
    rows = []
    for device in found:
        name = f"opencl:{device.name}"
        with show.err.status(f"{name} computes something small …"):
            problem = probe.run_in_child(name)
        rows.append({"name": name, "passed": not problem, "problem": problem,
                     "caps": device.caps.to_json()})
    notes = [] if rows else ["no OpenCL device. Try: pip install pocl-binary-distribution (x86-64 "
                             "Linux), or install the GPU vendor's OpenCL driver"]
    return rows, notes


def _version(package: str) -> str | None:
    module = {"scikit-learn": "sklearn", "pillow": "PIL",
              "pocl-binary-distribution": "pocl_binary_distribution"}.get(package, package)
    if module in sys.modules and sys.modules[module] is None:
        return None
    try:
        if module != "pocl_binary_distribution" and importlib.util.find_spec(module) is None:
            return None
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _missing() -> list[str]:
    notes = []
    if _version("torch") is None:
        notes.append("PyTorch is not installed: step files train here, and capturing a model needs "
                     "pip install 'handheld[capture]'")
    if _version("scikit-learn") is None or _version("pillow") is None:
        notes.append("--data digits and image folders need pip install 'handheld[data]'")
    return notes


def present(report: dict[str, Any]) -> None:
    """The same for people."""
    free, total = report["memory_available_bytes"], report["memory_bytes"]
    heat, charge = report["temperature_celsius"], report["battery_percent"]
    show.out.print(show.grid([
        ("handheld", f"{report['handheld']} on Python {report['python']}, {report['system']}"),
        ("memory", f"{show.size(free)} free of {show.size(total)}"),
        ("packages", ", ".join(f"{k} {v}" for k, v in report["packages"].items() if v)),
        ("battery", "not reported" if charge is None else f"{charge:.0f}%"),
        ("temperature", "not reported" if heat is None else f"{heat:.0f} °C"),
    ]))
    for device in report["devices"]:
        show.out.print()
        show.out.print(_device(device))
    for note in report["notes"]:
        show.out.print()
        show.out.print(Text.assemble(("note: ", "bold yellow"), note))


def _device(device: dict[str, Any]) -> Table:
    verdict = Text("PASS", style="bold green") if device["passed"] else Text.assemble(
        ("FAIL ", "bold red"), device["problem"])
    caps = device["caps"]
    extras = [name for name in ("fp16", "fp64", "images", "unified_memory") if caps[name]]
    return show.grid([
        ("device", Text(device["name"], style="bold")),
        ("result", verdict),
        ("what", f"{caps['name']} ({caps['kind']}, {caps['compute_units']} compute units)"),
        ("driver", caps["driver"]),
        ("memory", f"{show.size(caps['global_mem_bytes'])} available, "
                   f"{show.size(caps['max_alloc_bytes'])} in one piece, "
                   f"{show.size(caps['local_mem_bytes'])} local"),
        ("has", ", ".join(extras).replace("_", " ") or "nothing optional"),
    ])
