"""What a profile measures, and how to repeat it: `handheld profile --like RUN`.

A run file keeps the request (`settings.repeat`), the variants that its plan took from tuning records (`tuned`), the
versions of the kernel families (`kernels`) and a hash of all launches (`plan_hash`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handheld.analyse.conditions import meta_differences
from handheld.analyse.run import Run, open_run
from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions
from handheld.cli.means_options import AS_IS, Means
from handheld.device import DeviceCaps
from handheld.errors import HandheldError, OutOfMemory, PlanError, RunFileError
from handheld.limits.parts import why_whole
from handheld.partial.options import WHOLE, PartialOptions
from handheld.plan.plan import Plan
from handheld.plan.tuning import Entry, TuningRecord, load_tuning
from handheld.profile.facts import facts
from handheld.profile.run import STEPS
from handheld.run.planning import plan_step
from handheld.step import Step


@dataclass(frozen=True)
class Request:
    """What to profile, as the options of the command say it."""

    model: str
    size: str | None = None
    on: str = "opencl"
    precision: str = "float32"
    batch: int | None = None
    steps: int = STEPS
    graph: str | None = None
    data: str | None = None
    seed: int = 0
    given: DataOptions = PLAIN
    partial: PartialOptions = WHOLE
    #: Bytes; None: the memory of the device.
    memory_limit: int | None = None
    means: Means = AS_IS
    #: What the plan of a repeated run does to fit (plan/fit.py). A search may find something else each time.
    fit: Mapping[str, Any] | None = None
    #: The same for values that leave the device (plan/moves.py).
    moves: Mapping[str, Any] | None = None
    #: True: the tuning records of the device; False: none; or the path of a record.
    tuning: bool | str = True

    def to_json(self) -> dict[str, object]:
        return {**dataclasses.asdict(dataclasses.replace(self, fit=None, moves=None)), "folder": str(Path.cwd())}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Request:
        """The inverse of `to_json`. Files are looked for here and then in the folder of the command. Raises KeyError,
        TypeError or ValueError for anything else."""
        known = {field.name for field in dataclasses.fields(Request)}
        values = {key: value for key, value in data.items() if key in known}
        folder = Path(data["folder"])
        for key, kind in (("model", str), ("steps", int), ("seed", int), ("on", str), ("precision", str)):
            if type(values[key]) is not kind:
                raise TypeError(f"{key} is {values[key]!r:.40}")
        if not isinstance(values.get("memory_limit"), int | None):
            raise TypeError(f"memory_limit is {values['memory_limit']!r:.40}")
        values["model"] = _found(values["model"], folder)
        values["data"] = values["data"] and _found(values["data"], folder)
        values["given"] = _options(values["given"]) if values.get("given") else PLAIN  # That of `bench` has none.
        values["partial"] = PartialOptions.of(values)
        values["means"] = Means.of(values.get("means") or {})
        return Request(**values)


def _options(data: Mapping[str, Any]) -> DataOptions:
    values = dict(data)
    for key in ("image_size", "drop", "one_hot"):
        values[key] = None if values[key] is None else tuple(values[key])
    return DataOptions(**values)


def _found(name: str, folder: Path) -> str:
    """The name of a file or of file.py:factory, with the folder in front if the file is there and not here."""
    file = name.rpartition(".py:")[0] + ".py" if ".py:" in name else name
    here = Path(file).exists() or not (folder / file).exists()
    return name if here else str(folder / name)


def repeated(path: Path, request: Request | None, typed: Request) -> tuple[Request, Run]:
    """The request of a run, and the run. `typed` are the options of this command, of which only --on and --steps may
    differ from their defaults; `request` is given if a model was named too. The caller closes the run."""
    if request is not None:
        raise HandheldError(f"--like {path} says which model to measure. Try: without {request.model}")
    for field in dataclasses.fields(Request):
        if field.name not in ("model", "on", "steps", "tuning") and getattr(typed, field.name) != field.default:
            words = {"given": "the options of data", "partial": "the options of partial training"}
            option = words.get(field.name, f"--{field.name.replace('_', '-')}")
            raise HandheldError(f"{option} cannot be combined with --like, which repeats a run. Try: without it")
    run = open_run(path)
    stored = (run.meta.get("settings") or {}).get("repeat")
    if stored is None:
        run.close()
        raise RunFileError(
            f"{path} does not say how it was measured: it was written from Python, by another command, or by an older "
            "version. Try: handheld profile MODEL"
        )
    try:
        known = Request.from_json(stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        run.close()
        raise RunFileError(f"{path} is damaged: its settings cannot be read: {error}. Try: copy it again") from None
    changed: dict[str, Any] = {"tuning": known.tuning}
    changed |= {"on": typed.on} if typed.on != "opencl" else {}
    changed |= {"steps": typed.steps} if typed.steps != STEPS else {}
    return dataclasses.replace(known, **changed), run


@contextlib.contextmanager
def asked(like: Path | None, request: Request, named: bool) -> Iterator[tuple[Request, Run | None]]:
    """The request to carry out, and the run that it repeats, if any. With `like`, the variants of that run's plan are a
    tuning record as long as the block lasts."""
    if like is None:
        if not named:
            raise HandheldError("name a model to profile, or a run to repeat. Try: handheld profile lenet5")
        yield request, None
        return
    known, run = repeated(like, request if named else None, request)
    with run, tempfile.TemporaryDirectory() as folder:
        yield as_measured(run, known, Path(folder), fit=request.on in ("opencl", known.on)), run


def as_measured(run: Run, request: Request, folder: Path, fit: bool = True) -> Request:
    """The request with the variants of the run's plan, as a tuning record in the folder, and with what the plan does to
    fit. Another device may need another fit."""
    if fit:
        options = run.meta.get("plan_options") or {}
        request = dataclasses.replace(request, fit=options.get("fit"), moves=options.get("moves"))
    record = _record(run)
    if request.tuning is False or record is None:
        return request
    path = folder / f"{run.path.stem}-tuning.json"
    record.write(path)
    return dataclasses.replace(request, tuning=str(path))


def with_known_variants(run: Run, request: Request, caps: DeviceCaps, folder: Path) -> Request:
    """The request of a changed step on the same device: the variants of the run's plan where shapes are the same, those
    of the device's records for other shapes. If the run's plan had no variants from records, this one has none."""
    record = _record(run)
    if request.tuning is False or record is None:
        return request
    if record.entries:
        record.entries = {**load_tuning(caps, True).entries, **record.entries}
    path = folder / f"{run.path.stem}-changed-tuning.json"
    record.write(path)
    return dataclasses.replace(request, tuning=str(path))


def planned(step: Step, names: list[str], request: Request) -> Plan:
    """The plan of a request. A repeated run has the same fit again, unless its model is another one now."""
    options: dict[str, Any] = {
        "graphs": names,
        "precision": request.precision,
        "tuning": request.tuning,
        "memory_limit_bytes": request.memory_limit,
    }
    if request.fit or request.moves:
        try:
            kept = {key: value for key, value in request.means.options().items() if key != "spill"}
            return plan_step(step, request.on, fit=request.fit, moves=request.moves, **options, **kept)
        except (PlanError, KeyError, TypeError, ValueError) as error:
            output.warn(f"what the repeated run did to fit cannot be repeated: {error}. It is decided again")
    options |= request.means.options()
    try:
        return step.plan(request.on, micro_batches=1, **options)
    except OutOfMemory as error:
        if why_whole(step):
            raise
        text = f"{error}. handheld train may also divide a batch into micro-batches, a profile is of whole batches"
        raise error.again(text, error.largest_batch) from None


def _record(run: Run) -> TuningRecord | None:
    """The variants that the run's plan took from tuning records, as a record. None if the run does not say."""
    choices, caps = run.meta.get("tuned"), run.meta.get("caps") or {}
    if choices is None or not caps.get("driver"):
        return None
    return TuningRecord(
        str(caps.get("name", "")),
        str(caps["driver"]),
        dict(run.meta.get("kernels") or {}),
        str(caps.get("kind", "")),
        int(caps.get("vector_width", 0)),
        entries={signature: Entry(choice, done=True) for signature, choice in choices.items()},
    )


def tell(run: Run | None, plan: Plan, code: Path | None) -> None:
    """Print what is different now from the run that is repeated, if there is one."""
    if run is None:
        return
    now = facts(plan, code or Path.cwd())
    changed = meta_differences({key: run.meta.get(key) for key in now}, now)
    output.warn(f"repeating {run.path}" + ("" if changed else ": device, versions, code and plan are the same"))
    for text in changed:
        output.warn(f"different now: {text}")
