"""Captures one family, trains it on a device and compares it with PyTorch; README.md defines the verdicts."""

from __future__ import annotations

import copy
import gc
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from eager import Eager, Narrow, make_optimizer, still, unsettle
from family import Family, Task
from torch import nn

from handheld import capture
from handheld.errors import HandheldError, UnsupportedOp
from handheld.graph.graph import Graph
from handheld.step import Step

#: the loss, parameters, buffers and momenta of one step
Values = dict[str, Any]

FACTOR, FLOOR, EXACT = 10.0, 2e-5, 1e-5


@dataclass
class Result:
    """One row of the table. `verdict` is ok, differs, unsupported, error or skipped."""

    name: str
    group: str
    verdict: str = "error"
    note: str = ""
    parameters: int = 0
    nodes: int = 0
    launches: int = 0
    programs: int = 0
    #: share of nodes that carry a module path
    paths: float = 0.0
    #: the error against float64 that is largest relative to its limit, and PyTorch's own error there
    worst: float = 0.0
    torch_worst: float = 0.0
    worst_name: str = ""
    #: the largest error as a share of its limit
    used: float = 0.0
    #: the largest difference between the graph and PyTorch, both in float64
    exact: float = 0.0
    flips: int = 0
    capture_s: float = 0.0
    total_s: float = 0.0
    baked: list[str] = field(default_factory=list)
    no_gradient: list[str] = field(default_factory=list)
    dropout: str = ""


def error(got: Any, want: Any, floor: float = 0.0) -> float:
    """The norm of the difference, relative to the norm of `want` or to `floor`, whichever is larger."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64).reshape(np.shape(got))
    gap = np.subtract(got, want, out=np.zeros_like(got), where=got != want)  # equal infinities do not differ
    scale = max(float(np.linalg.norm(want[np.isfinite(want)])), floor) or 1.0
    return float(np.linalg.norm(gap)) / scale


def has_nan(state: dict[str, Any]) -> bool:
    return any(bool(np.isnan(v).any()) for v in state.values())


def floor_of(want: dict[str, Any]) -> float:
    """A millionth of the largest gradient: smaller values are zero except for rounding."""
    sizes = [float(np.linalg.norm(v)) for k, v in want.items() if k.endswith(".momentum_buffer")]
    return 1e-6 * max(sizes, default=0.0)


def path_share(graph: Graph) -> float:
    """The share of nodes with a module path. The loss function counts as a place, but nodes that only the
    backward pass puts there have lost their module."""
    places = [(n.origin.phase, n.origin.path) for n in graph.nodes]
    forward, backward = (places.count((phase, "loss")) for phase in ("forward", "backward"))
    lost = sum(path == "" for _, path in places) + max(backward - 2 * forward, 0)
    return 1 - lost / max(len(places), 1)


def try_family(family: Family, device: str, steps: int) -> Result:
    """Captures, runs and compares one family."""
    result = Result(family.name, family.group)
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            _try(family.make(), result, device, steps)
    except UnsupportedOp as problem:
        result.verdict, result.note = "unsupported", str(problem)
    except ImportError as problem:
        result.verdict, result.note = "skipped", str(problem).splitlines()[0]
    except HandheldError as problem:
        result.verdict = "error"
        result.note = f"{type(problem).__name__}: {problem}"
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        result.verdict = "error"
        result.note = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})"
    result.total_s = time.perf_counter() - started
    result.note = result.note[:1500]
    gc.collect()
    return result


def _try(task: Task, result: Result, device: str, steps: int) -> None:
    model = still(task, task.model)
    unsettle(model)
    result.parameters = sum(p.numel() for p in model.parameters())
    twins = {torch.float64: copy.deepcopy(model), torch.float32: copy.deepcopy(model)}
    begun = time.perf_counter()
    step = _captured(task, model)
    result.capture_s = time.perf_counter() - begun
    graph = step.graphs["train"]
    result.nodes = len(graph.nodes)
    result.paths = path_share(graph)
    result.baked = list(graph.notes.get("frozen", ()))
    result.no_gradient = step.no_gradient()
    result.verdict = "ok"
    _train(task, step, twins, result, device, steps)
    _with_dropout(task, model, result)


def _captured(task: Task, model: nn.Module) -> Step:
    return capture(
        lambda batch: task.loss(model, batch),
        optimizer=make_optimizer(task, model),
        batch=task.batch,
        modules=model,
        evaluate=False,
    )


def _train(
    task: Task, step: Step, twins: dict[torch.dtype, nn.Module], result: Result, device: str, steps: int
) -> None:
    """Trains on the device and in PyTorch, each step from the same state, and compares."""
    start = dict(step.values)
    plan = step.plan(device)
    result.launches, result.programs = plan.graphs["train"].launches, plan.graphs["train"].programs
    own = Eager(task, twins[torch.float32], torch.float32)
    reference = Eager.exact(task, twins[torch.float64])
    narrow = Narrow()
    with step.plan("reference:cpu").start(float64=True) as trainer:
        exact: Values = {"loss": float(trainer.step(task.batch)), **trainer.state()}
    step.values.update(start)
    known = {alias for slot in step.slots.values() for alias in slot.names}
    with plan.start() as trainer:
        for number in range(steps):
            got: Values = {"loss": float(trainer.step(task.batch))}
            theirs: Values = {"loss": own.step()}
            want, reference = _wanted(theirs, own, reference, narrow)
            want |= reference.state()
            if number == 0 and reference is not own:
                loose = FACTOR if narrow.seen else 0.0
                _check_exact(exact, want, theirs | own.state(), loose, result)
            _compare(got | trainer.state(), want, theirs | own.state(), number, result)
            # All sides start the next step from the reference's state in float32.
            again = {
                k: v.astype(np.float32).astype(v.dtype) if v.dtype.kind == "f" else v
                for k, v in reference.state().items()
            }
            trainer.load({k: v for k, v in again.items() if k in known}, strict=False)
            reference.load(again)
            own.load(again)


def _wanted(theirs: Values, own: Eager, reference: Eager, narrow: Narrow) -> tuple[Values, Eager]:
    """The loss of one step of the reference, and the reference for the next steps: PyTorch's own float32 if
    float64 does not run or gives NaN."""
    if reference is own:
        return dict(theirs), own
    try:
        with narrow:
            want: Values = {"loss": reference.step()}
    except RuntimeError:
        return dict(theirs), own
    if has_nan(want | reference.state()) and not has_nan(theirs | own.state()):
        return dict(theirs), own
    return want, reference


def _check_exact(got: Values, want: Values, own: Values, loose: float, result: Result) -> None:
    """Compares the graph in float64 with PyTorch. With `loose`, errors up to `loose` times PyTorch's own pass."""
    floor = floor_of(want)
    errors = {k: error(got[k], v, floor) for k, v in want.items() if k in got}
    missing = [k for k in want if k not in got and not k.startswith("optimizer.")]
    limits = {k: max(EXACT, loose * error(own[k], want[k], floor)) for k in errors}
    bad = sorted((k for k, e in errors.items() if not e <= limits[k]), key=lambda k: -errors[k])
    result.exact = max(errors.values())
    if bad or missing:
        result.verdict = "differs"
        result.note = f"in float64: {len(bad)} of {len(want)} differ: " + "; ".join(
            [f"{k} {errors[k]:.1e}" for k in bad[:6]] + [f"{k} is missing" for k in missing[:3]]
        )


def _compare(got: Values, want: Values, own: Values, step: int, result: Result) -> None:
    floor, errors = floor_of(want), {}
    for name in want.keys() & got.keys():
        ours, theirs = error(got[name], want[name], floor), error(own[name], want[name], floor)
        errors[name] = (ours / (FACTOR * theirs + FLOOR), ours, theirs)
    bad = sorted((k for k, e in errors.items() if not e[0] <= 1), key=lambda k: -errors[k][0])
    worst = max(errors, key=lambda k: errors[k][0])
    if errors[worst][0] > result.used:
        result.used, result.worst, result.torch_worst = errors[worst]
        result.worst_name = worst
    flips = (
        errors["loss"][1] < 1e-4 + FACTOR * errors["loss"][2]
        and all(errors[k][1] < 0.3 for k in bad)
        and float(np.median([e[1] for e in errors.values()])) < 0.03
    )
    if bad and flips:
        result.flips += len(bad)
    elif bad and result.verdict == "ok":
        result.verdict = "differs"
        result.note = f"step {step}: {len(bad)} of {len(want)} differ: " + "; ".join(
            f"{k} {errors[k][1]:.1e} (PyTorch {errors[k][2]:.1e})" for k in bad[:6]
        )


def _with_dropout(task: Task, model: nn.Module, result: Result) -> None:
    """One more capture in train mode: dropout, drop path and noise must be captured too."""
    model.train()
    try:
        _captured(task, model)
        result.dropout = "ok"
    except Exception as problem:
        result.dropout = f"{type(problem).__name__}: {problem}"[:300]
        result.verdict = "dropout" if result.verdict == "ok" else result.verdict
