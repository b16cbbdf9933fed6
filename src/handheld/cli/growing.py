"""`handheld fit --largest image|length`: the largest image or the longest sequence that trains."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from rich.text import Text

from handheld.cli import output
from handheld.cli.data_options import DataOptions
from handheld.cli.described import device_caps
from handheld.cli.plan import plan_sizes
from handheld.cli.prepare import examples, load_example
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.device import DeviceCaps, canonical
from handheld.errors import HandheldError
from handheld.limits.growing import Grown, Kind, grow, name_of, own_axes, regrown
from handheld.limits.planning import Fitting
from handheld.resolve import Factory, ModelSpec, Suite
from handheld.step import Step

#: The options of workloads that set these sizes.
OPTIONS = {"image": "size", "length": "length"}


@dataclasses.dataclass
class Search:
    """What is looked for: the model, the device and what of the samples grows."""

    spec: ModelSpec
    batch: int
    data: str | None
    given: DataOptions
    device: str
    limit: int | None
    precision: str
    kind: Kind

    def run(self, seconds: float, json: bool) -> None:
        caps = device_caps(self.device, self.precision)
        available = min(self.limit or caps.global_mem_bytes, caps.global_mem_bytes)
        with stages(json) as say:
            base = self._base()
            own = min(own_axes(base, self.kind))
            found = grow(lambda size: self._fitting(base, size, caps), self.kind, own, available, seconds, say)
        result = {
            "model": self.spec.name,
            "device": self.device,
            "name": caps.name,
            "precision": self.precision,
            "batch": self.batch,
            "available_bytes": available,
            "what": self.kind,
            "largest": found.size or None,
            "exact": found.exact,
            "why_no_larger": found.why,
            "tried": [{"size": p.batch, "bytes": p.nbytes, "fits": p.fits, "why": p.why} for p in found.tried],
        }
        output.print_json(result) if json else _present(result, found, self.kind)

    def _base(self) -> Any:
        """The example batch that grows. A workload then makes its own, with a model of that size."""
        if self.data is not None:
            return examples(load_example(self.data, self.batch, 0, self.spec, self.given), 1)[0]
        if isinstance(self.spec, Suite):
            return self.spec.example(self.batch)
        if not isinstance(self.spec, Factory):
            raise HandheldError(
                f"a step file has the sizes that it was packaged with, so no {name_of(self.kind)} can grow. "
                "Try: handheld fit with the model's code"
            )
        return self.spec.need_example(self.batch)

    def _fitting(self, base: Any, size: int, caps: DeviceCaps) -> Fitting:
        step, device = self._step(base, size), canonical(self.device)
        sizes = plan_sizes(step, self.batch, None, device, caps, self.limit, self.precision)
        return Fitting(sizes.step, device, caps, sizes.names(self.batch), sizes.options)

    def _step(self, base: Any, size: int) -> Step:
        if self.data is not None or not isinstance(self.spec, Suite):
            return self.spec.step([self.batch], 0, regrown(base, self.kind, size))
        spec = copy.copy(self.spec)
        try:
            spec.workload = spec.workload.with_options(**{OPTIONS[self.kind]: size})
        except HandheldError:
            what = f"{name_of(self.kind)}s"
            raise HandheldError(f"{spec.name} has no {what} whose size can be chosen. Try: --largest batch") from None
        return spec.step([self.batch], 0)


def _present(result: dict[str, Any], found: Grown, kind: Kind) -> None:
    name, room = name_of(kind), output.size(result["available_bytes"])
    of = "{0:,} x {0:,} pixels" if kind == "image" else "{0:,}"
    if found.size:
        more = "" if found.exact else " or more (--seconds was too short to be sure)"
        answer = f"The largest {name} that trains in {room} is {of.format(found.size)}{more}"
    else:
        answer = f"No {name} fits into {room}"
    output.out.print(Text(answer, style="bold"))
    output.out.print()
    lines = [
        ("model", f"{result['model']}, batch {result['batch']}, {result['precision']}"),
        ("device", result["name"]),
    ]
    output.out.print(output.grid(lines))
    output.out.print()
    rows = [
        (of.format(p.batch), output.size(p.nbytes), "fits" if p.fits else "does not fit")
        if p.nbytes
        else (of.format(p.batch), "-", "does not run")
        for p in found.tried
    ]
    output.out.print(table([Column(name, name_of=True), Column("memory"), Column("")], rows))
    if found.why:
        output.out.print(f"A larger one does not run with this model: {found.why}")
