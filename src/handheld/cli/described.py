"""What commands that only plan begin with: the description of a device, and a captured step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from handheld.backends.table import BACKENDS
from handheld.cli import output
from handheld.cli.data_options import DataOptions
from handheld.cli.prepare import capture_example, check_frozen
from handheld.device import DeviceCaps, backend_of, canonical
from handheld.drivers.check import described
from handheld.errors import DeviceError
from handheld.names import suggestion
from handheld.resolve import ModelSpec
from handheld.step import Step


def device_caps(name: str, precision: str = "float32") -> DeviceCaps:
    """The description for a text of --device, for plans in this precision."""
    if name.endswith(".json"):
        return DeviceCaps.read(Path(name))
    if name in DeviceCaps.names():
        return DeviceCaps.shipped(name)
    if backend_of(canonical(name)) in BACKENDS:
        return described(canonical(name), precision)
    names = [*DeviceCaps.names(), "opencl", "reference:cpu"]
    hint = suggestion(name, names, f"{', '.join(names)}, or the JSON file of a description")
    raise DeviceError(f"there is no device {name!r}. {hint}")


def captured(
    spec: ModelSpec, batch: int, data: str | None, given: DataOptions, say: Callable[[str], None] = lambda text: None
) -> Step:
    say(f"capturing {spec.name} for a batch of {batch}")
    step, _ = capture_example(spec, [batch], 0, data, given)
    frozen = check_frozen(step, spec, accept=True)  # The costs do not depend on the frozen values.
    if frozen:
        output.warn(frozen)
    return step
