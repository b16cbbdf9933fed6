"""`handheld doctor`: lists devices, versions and sensors, what is missing, and how to get it."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, TypedDict

import typer
from rich.table import Table
from rich.text import Text

import handheld
from handheld.backends.hints import driver_hint
from handheld.backends.present import present_devices
from handheld.backends.runner import connect
from handheld.cli import attached, driver_checks, energy_model, machine_facts, output, sensing
from handheld.cli.fleet_run import on_fleet
from handheld.cli.options import Json
from handheld.cost.energy import EnergyModel
from handheld.device import DeviceCaps, backend_of
from handheld.drivers.store import Truth
from handheld.errors import DeviceError, HandheldError
from handheld.measure import ceilings
from handheld.measure.timing import Measured
from handheld.plan.tuning import load_tuning
from handheld.profile import energy_models
from handheld.profile.machine import need_power
from handheld.targets.names import is_remote, is_target, no_pyopencl, parse

_PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "torch", "scikit-learn", "pillow")


On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="DEVICE",
        help="Only this device: opencl:NAME, adb, adb:SERIAL or ssh:user@host. fleet:GROUP with --conformance.",
    ),
]


def _not_on_fleet(values: dict[str, Any]) -> str:
    return "" if values["conformance"] else "doctor takes a fleet only with --conformance. Try: handheld fleet"


@on_fleet("doctor", lambda own: own, _not_on_fleet)
def doctor(
    measure: Annotated[
        bool, typer.Option("--ceilings", help=("Measure the peak rates of each device and store them."))
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help=("Measure the energy model of each device and store it."))
    ] = False,
    recheck: driver_checks.Recheck = False,
    conformance: driver_checks.Conformance = False,
    out: driver_checks.Out = None,
    sample: driver_checks.Sample = None,
    on: On = None,
    json: Json = False,
) -> None:
    """Show what this machine or a target can do and what is missing.

    Each device computes something small as a test; the exit code is 1 if none passes. A driver that was
    never seen is checked instead: every kernel family against NumPy, once, which takes seconds, or minutes
    with a slow compiler. Plans avoid what is wrong. Device names are stable: use a name printed here for
    --on in any command. Memory is what is free now, not the driver's total.

    Sensors come last. Each shows its reading, how often to read it and the cost of a reading, or why it is
    missing. On a target, everything but the lines `host` and `packages` is about the target.

    --ceilings measures arithmetic, bandwidth by working set, transfers and launches. It shows medians
    with the range between quartiles, takes some seconds, and stores the result for later calls.

    --energy measures ops of all kinds alone, for one to three minutes, or longer if only a battery tells
    the power, and stores a model. Profiles then show the joules of every op. It needs a power sensor.

    --conformance compares every op case and its gradients with PyTorch in float64, each in a process
    that may crash. It takes minutes, continues where it was interrupted, and writes report.json, report.md
    and report.html, to be published. It needs PyTorch on this machine; the device may be a target.

    \b
    Examples:
    handheld doctor
    handheld doctor --conformance --on opencl:pocl --out pocl-report
    handheld doctor --ceilings --on opencl:pocl
    handheld doctor --energy --on opencl
    handheld doctor --on adb
    handheld doctor --json > machine.json
    """
    if conformance:
        driver_checks.run_cases(on, out, sample, json)
        return
    if out is not None or sample is not None:
        raise HandheldError("--out and --sample belong to the op cases. Try: handheld doctor --conformance")
    report = examine(measure, on, energy, recheck)
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
    check: Truth | None = None

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
            "check": self.check.to_json() if self.check else None,
        }


class Report(machine_facts.MachineFacts):
    """Everything that doctor reports. `handheld`, `python`, `host_system` and `packages` are those of this machine."""

    handheld: str
    python: str
    host_system: str
    packages: dict[str, str | None]
    devices: list[DeviceFacts]
    phones: list[attached.PhoneFacts]
    sensors: list[sensing.SensorFacts]
    notes: list[str]


def examine(measure: bool = False, on: str | None = None, energy: bool = False, recheck: bool = False) -> Report:
    if energy:
        need_power(on or "opencl")
    devices, notes = _devices(measure, energy, on, recheck)
    remote = on is not None and is_remote(on)
    return {
        **machine_facts.examine(on),
        "handheld": handheld.__version__,
        "python": platform.python_version(),
        "host_system": machine_facts.this_system(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "devices": devices,
        "phones": attached.examine() if on is None else [],
        "sensors": sensing.examine_on(on) if on is not None and remote else sensing.examine(),
        "notes": notes + _missing(remote),
    }


def _devices(measure: bool, energy: bool, on: str | None, recheck: bool) -> tuple[list[DeviceFacts], list[str]]:
    try:
        devices = _named(on)
    except DeviceError as error:
        if on is not None:
            raise
        return [], [str(error)]
    rows = []
    for name, caps in devices:
        truth, problem = driver_checks.examine(name, caps, recheck)
        if measure and not problem:
            problem = _measure(name)
        if energy and not problem:
            problem = energy_model.measure(name, caps)
        known = energy_models.stored(caps, name)
        rows.append(DeviceFacts(name, problem, caps, _tuning(caps), ceilings.stored(caps), *known, truth))
    notes = [] if rows else [f"there is no OpenCL device. {driver_hint()}"]
    return rows, notes


def _named(on: str | None) -> list[tuple[str, DeviceCaps]]:
    """The devices to examine: those of this machine, those of a target, or the one that the user named."""
    if on is not None and backend_of(on) != "opencl" and is_target(on):
        target = parse(on)
        with output.err.status(f"{target.target} answers …"):
            found = [connect.find(target)] if target.device else connect.devices(target)
        return [(str(dataclasses.replace(target, device=device.name)), device.caps) for device in found]
    return [(device.name, device.caps) for device in present_devices(on)]


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


def _missing(remote: bool) -> list[str]:
    """What this machine lacks for the devices that were examined."""
    notes = []
    if no_pyopencl() and not remote:
        notes.append(f"pyopencl cannot be imported ({no_pyopencl()}): the native runner serves the OpenCL devices here")
    if _version("torch") is None:
        notes.append(
            "PyTorch is not installed on this machine: step files train, but capturing a model needs PyTorch. "
            "Try: pip install torch"
        )
    for package, needs in (("scikit-learn", "--data digits needs"), ("pillow", "image folders need")):
        if _version(package) is None:
            notes.append(f"{needs} {package}, which is not installed. Try: pip install {package}")
    return notes


def present(report: Report) -> None:
    """Print the report."""
    software = f"{report['handheld']} on Python {report['python']}, {report['host_system']}"
    packages = ("packages", ", ".join(f"{k} {v}" for k, v in report["packages"].items() if v))
    machine = machine_facts.rows(report)
    if report["target"]:
        who = f"{report['target']}: {report['model']}" if report["model"] else report["target"]
        header = [("target", who), ("system", report["system"]), *machine, ("host", f"handheld {software}"), packages]
    else:
        header = [("handheld", software), packages, *machine]
    output.out.print(output.grid(header))
    for device in report["devices"]:
        output.out.print()
        output.out.print(_device(device))
    if report["phones"]:
        output.out.print()
        output.out.print(output.grid(attached.rows(report["phones"])))
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
    on = f" --on {device.name}" if is_remote(device.name) else ""  # for commands to try
    extras = [name.replace("_", " ") for name in ("fp16", "fp64", "images", "unified_memory") if getattr(caps, name)]
    if caps.kind == "cpu":
        wide = " (AVX-512, requested by name)" if caps.features else ""
        extras.append(f"vectors of {output.count(caps.vector_width, 'float')}{wide}")
    elif caps.features:
        extras.append("tensor cores")
    return output.grid(
        [
            ("device", Text(device.name, style="bold")),
            ("result", verdict),
            ("what", f"{caps.name} ({caps.kind}, {output.count(caps.compute_units, 'compute unit')})"),
            ("driver", caps.driver),
            *(
                []
                if device.problem and device.check is None
                else [("check", driver_checks.words(device.check, device.caps, on))]
            ),
            (
                "memory",
                f"{output.size(caps.global_mem_bytes)} available, "
                f"{output.size(caps.max_alloc_bytes)} in one piece, "
                f"{output.size(caps.local_mem_bytes)} local",
            ),
            ("has", ", ".join(extras) or "nothing optional"),
            ("tuning", _tuning_words(device.tuning, on)),
            *_ceilings_rows(device.ceilings, on),
            *energy_model.rows(device.energy, device.no_energy, caps, device.name),
        ]
    )


def _tuning_words(tuning: TuningFacts, on: str) -> str:
    lines = [f"{line}{on}" if line.endswith("MODEL") else line for line in tuning["ignored"]]
    if tuning["shapes"]:
        lines.insert(
            0, f"{output.count(tuning['shapes'], 'shape')} tuned, {tuning['changed']} of them differ from the default"
        )
    lines += [f"left out {output.count(n, 'variant')}: {why}" for why, n in tuning["failed"].items()]
    return "\n".join(lines) or f"none. Try: handheld tune MODEL{on}"


def _ceilings_rows(known: ceilings.Ceilings | None, on: str) -> list[tuple[str, str]]:
    if known is None:
        return [("ceilings", f"not measured. Try: handheld doctor --ceilings{on}")]
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
