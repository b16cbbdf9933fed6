"""The process of one run: captures a step into a file, or measures one (see task.py).

One task arrives as JSON on standard input:

    {"do": "describe", "devices": [...]}                    describes the devices
    {"do": "prepare", "workload", "size", "batch", "seed",  captures, writes the step and a batch
     "step": FILE}
    {"do": "measure", "step": FILE, "device", "run": FILE,  plans; if it fits, runs and profiles
     "steps", "seconds", "limit_bytes", "fit_bytes", "seed"}
    {"do": "eager", ...}                                    plain PyTorch trains the workload

Capturing has its own process, so that the memory of the measuring process is that of the run alone.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from handheld import package
from handheld.backends.base import describe, stable_name
from handheld.bench.eager import Eager, processor
from handheld.bench.matrix import OWN
from handheld.bench.row import measured
from handheld.bench.shapes import CaseShape, DescribeTask, EagerTask, MeasureTask, PrepareTask
from handheld.bench.task import FREE
from handheld.child import Parent
from handheld.device import takes_launches
from handheld.errors import BatchError, DeviceError, HandheldError, OutOfMemory
from handheld.plan.fit import fit_text
from handheld.profile.inputs import graphs_in_turn, inputs_for
from handheld.profile.run import profile
from handheld.progress import reporting
from handheld.resolve import ModelSpec, open_model
from handheld.targets.names import is_remote

SAY_S = 0.5  # Seconds between two reports about steps.

Say = Callable[..., None]


class Failed(Exception):
    """A task that failed, with its status and reason."""


def describe_devices(task: DescribeTask, say: Say) -> None:
    devices = {}
    for device in task["devices"]:
        caps = describe(processor(device)).to_json()
        if takes_launches(device):
            caps["stable_name"] = stable_name(device)
        devices[device] = caps
    say(facts={"devices": devices})


def prepare(task: PrepareTask, say: Say) -> None:
    say(stage="capturing")
    begun, path = time.monotonic(), Path(task["step"])
    spec = _spec(task)
    batch = task["batch"] or spec.default_batch
    try:
        step = spec.step([batch], task["seed"])
    except BatchError as error:
        raise Failed("failed", str(error)) from None
    example, by_name, arrays = spec.example(batch), {}, dict[str, np.ndarray]()
    runs = spec.runs(example) or [(name, example) for name in graphs_in_turn(step.graphs, batch)]
    for name, share in runs:
        inputs = inputs_for(share, step.graphs[name], task["seed"])
        by_name[name] = list(inputs) if isinstance(inputs, dict) else None
        values = inputs.values() if isinstance(inputs, dict) else inputs
        arrays |= {f"{name}/{i}": np.asarray(value) for i, value in enumerate(values)}
    facts = {
        "batch": batch,
        "data": "random" if example is None else "synthetic example",
        "parameters": sum(int(np.prod(slot.shape)) for slot in step.slots.values() if slot.role == "parameter"),
    }
    with path.with_suffix(".npz").open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    path.with_suffix(".json").write_text(json.dumps({"graphs": by_name}), encoding="utf-8")
    step.save(path)
    say(facts={**facts, "prepare_s": time.monotonic() - begun})


def measure(task: MeasureTask, say: Say) -> None:
    say(stage="opening the device")
    path, device = Path(task["step"]), task["device"]
    _open(device)
    say(stage="planning")
    step = package.load(path)
    graphs = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["graphs"]
    limit = _limit(task, device)
    try:
        # A plan that does not fit is a result, unless a limit was given for plans to meet.
        recompute = task["fit_bytes"] is not None
        plan = step.plan(device, graphs=list(graphs), memory_limit_bytes=limit, recompute=recompute, micro_batches=1)
    except OutOfMemory as error:
        say(facts={"planned_bytes": error.needed_bytes, "available_bytes": error.available_bytes})
        # The step file holds one batch. run.py says how to find the largest one that fits.
        raise Failed("does not fit", str(error).partition(". A step file has")[0]) from None
    say(facts={"planned_bytes": plan.bytes, "fit": fit_text(plan.options, plan.bytes)}, stage="building kernels")
    steps = Steps(say)
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = {name: _given(arrays, name, keys) for name, keys in graphs.items()}
    names = list(graphs)
    with profile(
        plan,
        inputs[names[0]] if len(names) == 1 else inputs,
        task["run"],
        steps=task["steps"],
        seconds=task["seconds"],
        graph=names,
        progress=steps,
        settings=_settings(task, limit if recompute else None),
    ) as run:
        row = measured(run, task["batch"], device)
    say(facts={**row, "first_step_s": steps.first_s, "resident_bytes": _most_resident()})


def _settings(task: MeasureTask, limit: int | None) -> dict[str, object]:
    """What the run file says about the task, with what `handheld profile --like` needs to repeat it."""
    same = {"batch": task["batch"], "seed": task["seed"], "size": _size(task["size"]), "folder": str(Path.cwd())}
    model = task["workload"]
    repeat = {"on": task["device"], "precision": "float32", "steps": task["steps"], "data": None, "memory_limit": limit}
    return {"what": model, "model": model, "data": task["data"], **same, "repeat": {"model": model, **repeat, **same}}


def _size(name: str) -> str | None:
    return None if name == OWN else name


def _limit(task: MeasureTask, device: str) -> int | None:
    """The most memory that a plan may use: the given limits and, on a device that shares the machine's memory, no more
    than this process may hold (task.py)."""
    limit = min((n for n in (task["limit_bytes"], task["fit_bytes"]) if n is not None), default=None)
    if is_remote(device) or not describe(device).unified_memory:
        return limit
    held = psutil.Process().memory_info().rss
    room = max(int(FREE * (psutil.virtual_memory().available + held)) - held, 1)
    return min(limit or room, room)


def eager(task: EagerTask, say: Say) -> None:
    say(stage="building the model")
    _open(task["device"])
    spec = _spec(task)
    batch = task["batch"] or spec.default_batch
    model = Eager(spec, task["device"], batch, task["seed"])
    say(facts={"batch": batch, "parameters": model.parameters, "data": "synthetic example", "planned_bytes": None})
    steps = Steps(say)
    with model.profile(task["run"], steps=task["steps"], seconds=task["seconds"], progress=steps) as run:
        row = {**measured(run, batch, task["device"]), "peak_bytes": run.meta.get("peak_bytes")}
    say(facts={**row, "first_step_s": steps.first_s, "resident_bytes": _most_resident()})


class Stages:
    """Passes on the stages of a preparation, such as `building 12 of 33`."""

    def __init__(self, say: Say) -> None:
        self._say, self._said = say, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if not done or now - self._said >= SAY_S:
            self._said = now
            self._say(stage=f"{stage} {done} of {total}" if total else stage)


class Steps:
    """Reports the progress, and remembers when the first step was done."""

    def __init__(self, say: Say) -> None:
        self.say, self.first_s = say, 0.0
        self._begun, self._said = time.monotonic(), 0.0

    def __call__(self, done: int, count: int, what: str) -> None:
        now = time.monotonic()
        self.first_s = self.first_s or now - self._begun
        if now - self._said >= SAY_S:
            self._said = now
            self.say(stage=f"step {done}")


def _spec(task: CaseShape) -> ModelSpec:
    spec = open_model(task["workload"], _size(task["size"]))
    spec.takes_data = False
    return spec


def _open(device: str) -> None:
    try:
        describe(processor(device))
    except DeviceError as error:
        raise Failed("device lost", str(error)) from None


def _given(
    arrays: np.lib.npyio.NpzFile, name: str, keys: list[str] | None
) -> tuple[np.ndarray, ...] | dict[str, np.ndarray]:
    count = sum(key.rpartition("/")[0] == name for key in arrays.files)
    values = [arrays[f"{name}/{i}"] for i in range(count)]
    return tuple(values) if keys is None else dict(zip(keys, values, strict=True))


def _most_resident() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _memory(error: Exception) -> bool:
    """Whether the error means that memory ran out. PyTorch has no exception class for that on a CPU."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


TASKS: dict[str, Callable[[Any, Say], None]] = {
    "describe": describe_devices,
    "prepare": prepare,
    "measure": measure,
    "eager": eager,
}


def main() -> None:
    parent = Parent()
    with contextlib.suppress(OSError):  # If memory runs out, the system should kill this process and no other.
        Path("/proc/self/oom_score_adj").write_text("1000")

    def say(**words: object) -> None:
        parent.send(words)

    task = parent.receive()
    if task is None:
        return
    try:
        with reporting(Stages(say)):
            TASKS[task["do"]](task, say)
        say(status="done")
    except Failed as stop:
        say(status=stop.args[0], reason=stop.args[1])
    except OutOfMemory as error:
        say(status="out of memory", reason=str(error))
    except Exception as error:  # Any error of a model, a driver or PyTorch becomes a row.
        if _memory(error):
            say(status="out of memory", reason=f"{type(error).__name__}: {error}")
            return
        name = "" if isinstance(error, HandheldError) else f"{type(error).__name__}: "
        say(status="failed", reason=f"{name}{error}", facts={"error": type(error).__name__})


if __name__ == "__main__":
    main()
