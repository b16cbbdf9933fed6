"""`handheld doctor`: lists devices, versions and sensors, what is missing, and how to get it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, TypedDict

import psutil
import typer
from rich.table import Table
from rich.text import Text

import handheld
from handheld.backends.base import available_memory
from handheld.backends.opencl import devices as opencl_devices
from handheld.cli import energy_model, output, probe, sensing
from handheld.cli.options import Json
from handheld.cost.energy import EnergyModel
from handheld.device import DeviceCaps
from handheld.errors import DeviceError
from handheld.measure import ceilings
from handheld.measure.timing import Measured
from handheld.plan.tuning import load_tuning
from handheld.profile import energy_models
from handheld.run import guards

_PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "torch", "scikit-learn", "pillow")


def doctor(
    measure: Annotated[
        bool, typer.Option("--ceilings", help=("Measure the peak rates of each device and store them."))
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help=("Measure the energy model of each device and store it."))
    ] = False,
    on: Annotated[str | None, typer.Option("--on", metavar="DEVICE", help=("Only this device."))] = None,
    json: Json = False,
) -> None:
    """Show what this machine can do and what is missing.

    Each device computes something small as a test; the exit code is 1 if none passes. Device names
    are stable: use a name printed here for --on in any command. Memory is what is free now, not the
    driver's total.

    Sensors come last. Each shows its reading, how often to read it and the cost of a reading, or why
    it is missing.

    --ceilings measures arithmetic, bandwidth by working set, transfers and launches. It shows medians
    with the range between quartiles, takes some seconds, and stores the result for later calls.

    --energy measures ops of all kinds alone, for one to three minutes, and stores a model. Profiles then
    show the joules of every op. It needs a power sensor.

    \b
    Examples:
    handheld doctor
    handheld doctor --ceilings --on opencl:pocl
    handheld doctor --energy --on opencl
    handheld doctor --json > machine.json
    """
    report = examine(measure, on, energy)
    if json:
        output.print_json({**report, "devices": [device.to_json() for device in report["devices"]]})
    else:
        present(report)
    if all(device.problem for device in report["devices"]):
        raise typer.Exit(1)


class TuningFacts(TypedDict):
    """What the tuning records hold for a device, and which records are not used and why."""

    shapes: int
    changed: int
    failed: dict[str, int]
    records: list[str]
    ignored: list[str]


@dataclass(frozen=True)
class DeviceFacts:
    """An OpenCL device. `problem` says why it did not pass the test, or is empty."""

    name: str
    problem: str
    caps: DeviceCaps
    tuning: TuningFacts
    ceilings: ceilings.Ceilings | None
    energy: EnergyModel | None
    no_energy: str  # why there is no energy model, or ""

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "passed": not self.problem,
            "problem": self.problem,
            "caps": self.caps.to_json(),
            "tuning": self.tuning,
            "ceilings": self.ceilings.to_json() if self.ceilings else None,
            "energy": self.energy.to_json() if self.energy else None,
            "no_energy": self.no_energy,
        }


class Report(TypedDict):
    """Everything that doctor reports."""

    handheld: str
    python: str
    system: str
    memory_bytes: int
    memory_available_bytes: int
    packages: dict[str, str | None]
    battery_percent: float | None
    temperature_celsius: float | None
    devices: list[DeviceFacts]
    sensors: list[sensing.SensorFacts]
    notes: list[str]


def examine(measure: bool = False, on: str | None = None, energy: bool = False) -> Report:
    if energy:
        energy_model.need_power()
    devices, notes = _devices(measure, energy, on)
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


def _devices(measure: bool, energy: bool, on: str | None) -> tuple[list[DeviceFacts], list[str]]:
    try:
        devices = opencl_devices.devices() if on is None else [opencl_devices.find(on)]
    except DeviceError as error:
        if on is not None:
            raise
        return [], [str(error)]
    rows = []
    for device in devices:
        name = f"opencl:{device.name}"
        with output.err.status(f"{name} computes …"):
            problem = probe.run_in_child(name)
        if measure and not problem:
            problem = _measure(name)
        if energy and not problem:
            problem = energy_model.measure(name, device.caps)
        known = energy_models.stored(device.caps)
        rows.append(DeviceFacts(name, problem, device.caps, _tuning(device.caps), ceilings.stored(device.caps), *known))
    notes = (
        []
        if rows
        else [
            "there is no OpenCL device. Try: pip install pocl-binary-distribution (x86-64 "
            "Linux), or install the GPU vendor's OpenCL driver"
        ]
    )
    return rows, notes


def _measure(name: str) -> str:
    """Measure the ceilings. Returns "" or why that failed."""
    with output.err.status("") as status:
        try:
            ceilings.measure(name, lambda what, part: status.update(f"{name}: {what} … ({part:.0%})"))
        except Exception as error:  # Drivers raise their own types of errors; the reason is shown.
            return f"the ceilings could not be measured: {type(error).__name__}: {error}"
    return ""


def _tuning(caps: DeviceCaps) -> TuningFacts:
    tuning = load_tuning(caps)
    failed = {
        why: sum(why == w for e in tuning.entries.values() for _, w in e.failed)
        for e in tuning.entries.values()
        for _, why in e.failed
    }
    return {
        "shapes": len(tuning.entries),
        "changed": len(tuning.choices),
        "failed": failed,
        "records": [str(path) for path in tuning.used],
        "ignored": list(tuning.ignored),
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
            "PyTorch is not installed: step files train here, but capturing a model needs PyTorch. "
            "Try: pip install torch"
        )
    for package, needs in (("scikit-learn", "--data digits needs"), ("pillow", "image folders need")):
        if _version(package) is None:
            notes.append(f"{needs} {package}, which is not installed. Try: pip install {package}")
    return notes


def present(report: Report) -> None:
    """Print the report."""
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


def _device(device: DeviceFacts) -> Table:
    verdict = (
        Text("PASS", style="bold green") if not device.problem else Text.assemble(("FAIL ", "bold red"), device.problem)
    )
    caps = device.caps
    extras = [name.replace("_", " ") for name in ("fp16", "fp64", "images", "unified_memory") if getattr(caps, name)]
    if caps.kind == "cpu":
        wide = " (AVX-512, requested by name)" if caps.features else ""
        extras.append(f"vectors of {output.count(caps.vector_width, 'float')}{wide}")
    return output.grid(
        [
            ("device", Text(device.name, style="bold")),
            ("result", verdict),
            ("what", f"{caps.name} ({caps.kind}, {output.count(caps.compute_units, 'compute unit')})"),
            ("driver", caps.driver),
            (
                "memory",
                f"{output.size(caps.global_mem_bytes)} available, "
                f"{output.size(caps.max_alloc_bytes)} in one piece, "
                f"{output.size(caps.local_mem_bytes)} local",
            ),
            ("has", ", ".join(extras) or "nothing optional"),
            ("tuning", _tuning_words(device.tuning)),
            *_ceilings_rows(device.ceilings),
            *energy_model.rows(device.energy, device.no_energy),
        ]
    )


def _tuning_words(tuning: TuningFacts) -> str:
    lines = list(tuning["ignored"])
    if tuning["shapes"]:
        lines.insert(
            0, f"{output.count(tuning['shapes'], 'shape')} tuned, {tuning['changed']} of them differ from the default"
        )
    lines += [f"left out {output.count(n, 'variant')}: {why}" for why, n in tuning["failed"].items()]
    return "\n".join(lines) or "none. Try: handheld tune MODEL"


def _ceilings_rows(known: ceilings.Ceilings | None) -> list[tuple[str, str]]:
    if known is None:
        return [("ceilings", "not measured. Try: handheld doctor --ceilings")]
    half = f", fp16 {_rate(known.fp16, 'FLOP/s')}" if known.fp16 else ""
    rows = [
        ("ceilings", f"measured {known.date}, medians (± half the range between quartiles)"),
        *([("", known.disturbed)] if known.disturbed else []),
        ("  arithmetic", f"fp32 {_rate(known.fp32, 'FLOP/s')} {_kind(known)}{half}"),
    ]
    rows += [
        (f"  {output.size(m.working_set_bytes)}", f"read {_rate(m.read, 'B/s')}, copy {_rate(m.copy, 'B/s')}")
        for m in known.memory
    ]
    return [
        *rows,
        ("  to device", f"{_rate(known.to_device, 'B/s')}, latency {_micro(known.to_device_latency_s)}"),
        ("  to host", f"{_rate(known.to_host, 'B/s')}, latency {_micro(known.to_host_latency_s)}"),
        (
            "  launch",
            f"{_micro(known.launch_enqueue_s)} to enqueue, "
            f"{_micro(known.launch_device_s)} one after another, "
            f"{_micro(known.launch_round_trip_s)} to wait for",
        ),
    ]


def _kind(known: ceilings.Ceilings) -> str:
    """The vector type of the measurement. OpenCL's own name float16 would look like half precision."""
    width = known.fp32_type.removeprefix("float")
    return f"in vectors of {width}" if width else "without vectors"


def _rate(measured: Measured, unit: str) -> str:
    return f"{measured.median / 1e9:,.1f} G{unit} (±{measured.spread / 2:.0%})"


def _micro(measured: Measured) -> str:
    return f"{measured.median * 1e6:.1f} µs (±{measured.spread / 2:.0%})"
