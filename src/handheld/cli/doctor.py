"""`handheld doctor`: devices, versions, what is missing and what to do about it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib import metadata
from typing import Annotated, Any

import psutil
import typer
from rich.table import Table
from rich.text import Text

import handheld
from handheld.backends.base import available_memory
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import output, probe, sensing
from handheld.cli.options import Json
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.measure import ceilings
from handheld.measure.timing import Measured
from handheld.plan.tuning import load_tuning
from handheld.run import guards

_PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "torch", "scikit-learn", "pillow")


def doctor(
    measure: Annotated[
        bool, typer.Option("--ceilings", help=("Measure what each device can do at most, and keep it."))
    ] = False,
    on: Annotated[str | None, typer.Option("--on", metavar="DEVICE", help=("Only this device."))] = None,
    json: Json = False,
) -> None:
    """What this machine can do: each device computes something small.

    Devices have stable names: what is printed here works as --on everywhere. Memory is what the
    system has free now, not the driver's total. The exit code is 1 if no device passes.

    Sensors come last: each with what it reads now, how often it is worth reading and what that
    costs, or why it is not here.

    With --ceilings also: arithmetic, bandwidth by working set, transfers and launches, as medians
    with the range between quartiles. That takes seconds, and doctor shows it from then on.

    \b
    Examples:
    handheld doctor
    handheld doctor --ceilings --on opencl:pocl
    handheld doctor --json > machine.json
    """
    report = examine(measure, on)
    if json:
        output.print_json(report)
    else:
        present(report)
    if not any(device["passed"] for device in report["devices"]):
        raise typer.Exit(1)


def examine(measure: bool = False, on: str | None = None) -> dict[str, Any]:
    """Everything doctor knows, as plain data."""
    devices, notes = _devices(measure, on)
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
        "sensors": sensing.examine(),
        "notes": notes + _missing(),
    }


def _devices(measure: bool, on: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        found = opencl_devices.devices() if on is None else [opencl_devices.find(on)]
    except DeviceError as error:
        if on is not None:
            raise
        return [], [str(error)]
    rows = []
    for device in found:
        name = f"opencl:{device.name}"
        with output.err.status(f"{name} computes something small …"):
            problem = probe.run_in_child(name)
        if measure and not problem:
            problem = _measure(name)
        known = ceilings.stored(device.caps)
        rows.append(
            {
                "name": name,
                "passed": not problem,
                "problem": problem,
                "caps": device.caps.to_json(),
                "tuning": _tuning(device.caps),
                "ceilings": known.to_json() if known else None,
            }
        )
    notes = (
        []
        if rows
        else [
            "no OpenCL device. Try: pip install pocl-binary-distribution (x86-64 "
            "Linux), or install the GPU vendor's OpenCL driver"
        ]
    )
    return rows, notes


def _measure(name: str) -> str:
    """Empty, or why the ceilings could not be measured."""
    with output.err.status("") as status:
        try:
            ceilings.measure(name, lambda what, part: status.update(f"{name}: {what} … ({part:.0%})"))
        except Exception as error:  # drivers have errors of their own: any is an answer
            return f"the ceilings could not be measured: {type(error).__name__}: {error}"
    return ""


def _tuning(caps: DeviceCaps) -> dict[str, Any]:
    """What the tuning records say of a device, and which of them are not used."""
    found = load_tuning(caps)
    failed = {
        why: sum(why == w for e in found.entries.values() for _, w in e.failed)
        for e in found.entries.values()
        for _, why in e.failed
    }
    return {
        "shapes": len(found.entries),
        "changed": len(found.choices),
        "failed": failed,
        "records": [str(path) for path in found.used],
        "ignored": list(found.ignored),
    }


def _version(package: str) -> str | None:
    module = {"scikit-learn": "sklearn", "pillow": "PIL", "pocl-binary-distribution": "pocl_binary_distribution"}.get(
        package, package
    )
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
        notes.append(
            "PyTorch is not installed: step files train here, and capturing a model needs "
            "pip install 'handheld[capture]'"
        )
    if _version("scikit-learn") is None or _version("pillow") is None:
        notes.append("--data digits and image folders need pip install 'handheld[data]'")
    return notes


def present(report: dict[str, Any]) -> None:
    """The same for people."""
    free, total = report["memory_available_bytes"], report["memory_bytes"]
    heat, charge = report["temperature_celsius"], report["battery_percent"]
    output.out.print(
        output.grid(
            [
                ("handheld", f"{report['handheld']} on Python {report['python']}, {report['system']}"),
                ("memory", f"{output.size(free)} free of {output.size(total)}"),
                ("packages", ", ".join(f"{k} {v}" for k, v in report["packages"].items() if v)),
                ("battery", "not reported" if charge is None else f"{charge:.0f}%"),
                ("temperature", "not reported" if heat is None else f"{heat:.0f} °C"),
            ]
        )
    )
    for device in report["devices"]:
        output.out.print()
        output.out.print(_device(device))
    output.out.print()
    output.out.print(Text("sensors", style="bold"))
    output.out.print(output.grid(sensing.rows(report["sensors"])))
    for note in report["notes"]:
        output.out.print()
        output.out.print(Text.assemble(("note: ", "bold yellow"), note))


def _device(device: dict[str, Any]) -> Table:
    verdict = (
        Text("PASS", style="bold green")
        if device["passed"]
        else Text.assemble(("FAIL ", "bold red"), device["problem"])
    )
    caps = device["caps"]
    extras = [name.replace("_", " ") for name in ("fp16", "fp64", "images", "unified_memory") if caps[name]]
    if caps["kind"] == "cpu":
        asked = " (AVX-512, asked for by name)" if caps["features"] else ""
        extras.append(f"vectors of {caps['vector_width']} floats{asked}")
    return output.grid(
        [
            ("device", Text(device["name"], style="bold")),
            ("result", verdict),
            ("what", f"{caps['name']} ({caps['kind']}, {caps['compute_units']} compute units)"),
            ("driver", caps["driver"]),
            (
                "memory",
                f"{output.size(caps['global_mem_bytes'])} available, "
                f"{output.size(caps['max_alloc_bytes'])} in one piece, "
                f"{output.size(caps['local_mem_bytes'])} local",
            ),
            ("has", ", ".join(extras) or "nothing optional"),
            ("tuning", _tuning_words(device["tuning"])),
            *_ceilings_rows(device["ceilings"]),
        ]
    )


def _tuning_words(tuning: dict[str, Any]) -> str:
    lines = list(tuning["ignored"])
    if tuning["shapes"]:
        lines.insert(
            0, f"{output.count(tuning['shapes'], 'shape')} tuned, {tuning['changed']} of them to other than the default"
        )
    lines += [f"left out {output.count(n, 'variant')}: {why}" for why, n in tuning["failed"].items()]
    return "\n".join(lines) or "none. Try: handheld tune MODEL"


def _ceilings_rows(data: dict[str, Any] | None) -> list[tuple[str, str]]:
    if data is None:
        return [("ceilings", "not measured. Try: handheld doctor --ceilings")]
    found = ceilings.Ceilings.from_json(data)
    half = f", fp16 {_rate(found.fp16, 'FLOP/s')}" if found.fp16 else ""
    rows = [
        ("ceilings", f"of {found.date}, medians (± half the range between quartiles)"),
        *([("", found.disturbed)] if found.disturbed else []),
        ("  arithmetic", f"fp32 {_rate(found.fp32, 'FLOP/s')} {_kind(found)}{half}"),
    ]
    rows += [
        (f"  {output.size(m.working_set_bytes)}", f"read {_rate(m.read, 'B/s')}, copy {_rate(m.copy, 'B/s')}")
        for m in found.memory
    ]
    return [
        *rows,
        ("  to device", f"{_rate(found.to_device, 'B/s')}, latency {_micro(found.to_device_latency_s)}"),
        ("  to host", f"{_rate(found.to_host, 'B/s')}, latency {_micro(found.to_host_latency_s)}"),
        (
            "  launch",
            f"{_micro(found.launch_enqueue_s)} to enqueue, "
            f"{_micro(found.launch_device_s)} one after another, "
            f"{_micro(found.launch_round_trip_s)} to wait for",
        ),
    ]


def _kind(found: ceilings.Ceilings) -> str:
    """What it was measured with; OpenCL's float16 would read as halves."""
    width = found.fp32_type.removeprefix("float")
    return f"in vectors of {width}" if width else "without vectors"


def _rate(found: Measured, unit: str) -> str:
    return f"{found.median / 1e9:,.1f} G{unit} (±{found.spread / 2:.0%})"


def _micro(found: Measured) -> str:
    return f"{found.median * 1e6:.1f} µs (±{found.spread / 2:.0%})"
