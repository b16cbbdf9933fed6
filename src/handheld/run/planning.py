"""Plans for devices of this machine: describes the device, makes the plan, starts it.

`Step.plan`, `Plan.again` and `Plan.start` call these functions. They are here because plan/ knows only
descriptions of devices, not devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handheld.callers import warn_user
from handheld.device import DeviceCaps, canonical
from handheld.drivers.check import described
from handheld.errors import BuildError, OutOfMemory, PlanError
from handheld.passes.scale import GROWTH
from handheld.plan.make import make_plan
from handheld.plan.plan import Plan
from handheld.progress import Progress, reporting
from handheld.run.fitting import Sizes, with_largest
from handheld.run.trainer import Trainer

if TYPE_CHECKING:
    from handheld.step import Step


def plan_step(
    step: Step,
    device: str = "opencl",
    *,
    caps: DeviceCaps | None = None,
    graphs: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    isolate: bool = False,
    tuning: bool | str | Path = True,
    naive: bool = False,
    precision: str = "float32",
    growth_steps: int = GROWTH,
    fit: Mapping[str, Any] | None = None,
    parts: Mapping[str, Any] | None = None,
    moves: Mapping[str, Any] | None = None,
    stream: bool = False,
    spill_to: str | Path | None = None,
    state_bits: int = 32,
) -> Plan:
    """`Step.plan` as it is, without a search for what fits (limits/), and two more options.

    - `naive` runs matrix products like a published baseline, with one plain loop per work-item, for studies.
    - `fit` is what such a search decided, by graph (plan/fit.py), `moves` which values leave the device in between
      (plan/moves.py), and `parts` how batches are divided (run/parts.py).
    """
    request = requested(
        step,
        device,
        caps=caps,
        graphs=graphs,
        memory_limit_bytes=memory_limit_bytes,
        isolate=isolate,
        tuning=tuning,
        naive=naive,
        precision=precision,
        growth_steps=growth_steps,
        fit=fit,
        parts=parts,
        moves=moves,
        stream=stream,
        spill_to=spill_to,
        state_bits=state_bits,
    )
    try:
        return make_plan(step, request.device, request.caps, request.names, request.options)
    except OutOfMemory as error:
        raise request.with_largest(error) from None


@dataclass(frozen=True)
class Request:
    """A plan that is asked for: the step, the device, its description, the graphs, and the options of `make_plan`."""

    step: Step
    device: str
    caps: DeviceCaps
    names: list[str]
    options: dict[str, Any]

    def with_largest(self, error: OutOfMemory) -> OutOfMemory:
        """The same error, which also says which batch would fit."""
        return with_largest(error, Sizes(self.step, self.device, self.caps, self.names, self.options))


def requested(
    step: Step,
    device: str = "opencl",
    *,
    caps: DeviceCaps | None = None,
    graphs: Sequence[str] | None = None,
    memory_limit_bytes: int | None = None,
    isolate: bool = False,
    tuning: bool | str | Path = True,
    naive: bool = False,
    precision: str = "float32",
    growth_steps: int = GROWTH,
    fit: Mapping[str, Any] | None = None,
    parts: Mapping[str, Any] | None = None,
    moves: Mapping[str, Any] | None = None,
    stream: bool = False,
    spill_to: str | Path | None = None,
    state_bits: int = 32,
) -> Request:
    """Checks what was asked for, and describes the device."""
    _check_options(device, caps, graphs, memory_limit_bytes, tuning)
    if not isinstance(spill_to, str | Path | None):
        raise PlanError(f"spill_to={spill_to!r:.60} must be the path of a folder")
    device = canonical(device)
    caps = described(device, precision) if caps is None else caps
    names = list(step.graphs) if graphs is None else list(graphs)
    missing = [n for n in names if n not in step.graphs and n not in step.added]
    if missing or not names:
        raise PlanError(f"the step has no graph {missing or '(none named)'}; it has {', '.join(step.graphs)}")
    if naive and precision != "float32":
        raise PlanError("the naive product reads float32 only. Try: naive=True without precision=")
    options = {
        "memory_limit_bytes": memory_limit_bytes,
        "isolate": isolate,
        "tuning": str(tuning) if isinstance(tuning, Path) else tuning,
        "naive": naive,
        "precision": precision,
        "growth_steps": growth_steps,
        "fit": dict(fit or {}),
        "parts": dict(parts or {}),
        "moves": dict(moves or {}),
        "stream": stream,
        "state_bits": state_bits,
        "spill_to": None if spill_to is None else str(spill_to),
    }
    return Request(step, device, caps, names, options)


def _check_options(device: object, caps: object, graphs: object, limit: object, tuning: object) -> None:
    if not isinstance(device, str):
        raise PlanError(f"device={device!r:.60} must be a name, such as 'opencl' or 'reference:cpu'")
    if caps is not None and not isinstance(caps, DeviceCaps):
        raise PlanError(f"caps={caps!r:.60} must be a DeviceCaps. Try: DeviceCaps.shipped('adreno-740')")
    if isinstance(graphs, str) or not isinstance(graphs, Iterable | None):
        raise PlanError(f"graphs={graphs!r:.60} must be a list of names, such as ['train']")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise PlanError(f"memory_limit_bytes={limit!r:.60} must be a number of bytes, such as 256 << 20")
    if not isinstance(tuning, bool | str | Path):
        raise PlanError(f"tuning={tuning!r:.60} must be True, False or the path of a tuning record")


def plan_again(plan: Plan, device: str | None = None, **changed: Any) -> Plan:
    """A plan with the same options except for those in `changed`, on this or another device."""
    same = {"graphs": list(plan.graphs), "caps": None if device else plan.caps, **plan.options}
    if changed.get("precision", same["precision"]) != same["precision"]:
        same["fit"] = same["moves"] = {}  # They name values of a graph that will be another one.
    return plan_step(plan.step, device or plan.device, **{**same, **changed})


def start_plan(plan: Plan, *, progress: Progress | None = None, **options: Any) -> Trainer:
    """Start a trainer of the plan. If the driver rejects a kernel, warn and start one of `fallbacks` instead."""
    with reporting(progress):
        return _start_plan(plan, options)


def _start_plan(plan: Plan, options: dict[str, Any]) -> Trainer:
    try:
        return Trainer(plan, **options)
    except BuildError as error:
        problem = error
    for what, other in fallbacks(plan):
        warn_user(f"{str(problem)[:2000]}\nTrying {what} instead")
        try:
            return Trainer(other, **options)
        except BuildError as error:
            problem = error
    raise problem


def fallbacks(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Other plans to try if the driver rejects a kernel, each with a name for the warning.

    First without tuned choices, then without optional compiler features, then with the kernels for the
    other kind of device, which most drivers accept.
    """
    if any(graph.tuned for graph in plan.graphs.values()):
        yield "variants that were not tuned", plan_again(plan, tuning=False)
    if plan.caps.features:
        plain = replace(plan.caps, features="", vector_width=8)
        yield "vectors of 8 floats", plan_again(plan, caps=plain, tuning=False)
    other = replace(plan.caps, kind="gpu" if plan.caps.kind == "cpu" else "cpu")
    yield f"the {other.kind} variants", plan_again(plan, caps=other, tuning=False)
