"""Which models capture and train, and do they give what PyTorch gives?

    python scripts/coverage.py                       # every family that is installed
    python scripts/coverage.py --only gpt2,resnet    # names that contain one of these
    python scripts/coverage.py --group hf --json out.json

Each family is a small model with random weights. Its training step (forward, backward, SGD with
momentum) is captured, planned on a device and run for a few steps. Loss, every parameter, every
buffer and every momentum (that is: every gradient) are held against PyTorch in float64 from the
same start; what PyTorch's own float32 errs against it is the measure. Dropout is off for that, and
on for one more capture. A family is `ok` if nothing differs by more than `FACTOR` times PyTorch's
own error plus `FLOOR`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from coverage_family import Family, Task

from handheld import capture
from handheld.errors import HandheldError, UnsupportedOp

FACTOR, FLOOR = 10.0, 2e-5
STEPS = 2


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
    #: the error against float64 that is largest for its limit, and PyTorch's own at the same place
    worst: float = 0.0
    torch_worst: float = 0.0
    worst_name: str = ""
    used: float = 0.0  # of the limit
    capture_s: float = 0.0
    total_s: float = 0.0
    baked: list[str] = field(default_factory=list)
    no_gradient: list[str] = field(default_factory=list)
    dropout: str = ""


def still(model: nn.Module) -> nn.Module:
    """Dropout off, batch statistics on: what can be compared."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    return model


def run_eager(task: Task, model: nn.Module, dtype: torch.dtype, steps: int) -> dict[str, np.ndarray]:
    """Loss, parameters, buffers and momenta after `steps` steps of PyTorch."""
    still(model.to(dtype))
    batch = {k: v.to(dtype) if v.dtype.is_floating_point else v for k, v in task.batch.items()}
    optimizer = make_optimizer(task, model)
    found: dict[str, np.ndarray] = {}
    for step in range(steps):
        loss = task.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found[f"loss.{step}"] = np.float64(loss.detach())  # type: ignore[assignment]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = tensor.detach().double().numpy()
        held = optimizer.state.get(tensor, {}).get("momentum_buffer")
        if held is not None:
            found[f"optimizer.{name}.momentum_buffer"] = held.double().numpy()
    return found


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)


def error(got: Any, want: Any) -> float:
    """Relative norm of the difference."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64).reshape(np.shape(got))
    scale = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got - want)) / scale


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
        result.note = f"{type(problem).__name__}: {problem}"
    except Exception as problem:
        where = traceback.extract_tb(problem.__traceback__)[-1]
        result.note = f"{type(problem).__name__}: {problem} ({Path(where.filename).name}:{where.lineno})"
    result.total_s = time.perf_counter() - started
    result.note = result.note[:1500]
    gc.collect()
    return result


def _try(task: Task, result: Result, device: str, steps: int) -> None:
    model = still(task.model)
    result.parameters = sum(p.numel() for p in model.parameters())
    twins = {torch.float64: copy.deepcopy(model), torch.float32: copy.deepcopy(model)}

    begun = time.perf_counter()
    step = capture(lambda batch: task.loss(model, batch), optimizer=make_optimizer(task, model),
                   batch=task.batch, modules=model, evaluate=False)
    result.capture_s = time.perf_counter() - begun
    graph = step.graphs["train"]
    result.nodes = len(graph.nodes)
    named = sum(n.origin.path not in ("", "loss", "optimizer", "handheld") for n in graph.nodes)
    result.paths = named / max(len(graph.nodes), 1)
    result.baked = list(graph.notes.get("baked", ()))
    result.no_gradient = step.no_gradient()

    plan = step.plan(device)
    result.launches, result.programs = plan.graphs["train"].launches, plan.graphs["train"].programs
    with plan.start() as trainer:
        losses = [float(trainer.step(task.batch)) for _ in range(steps)]
        state: dict[str, Any] = dict(trainer.state())
    state |= {f"loss.{i}": value for i, value in enumerate(losses)}
    want, own = (run_eager(task, twins[d], d, steps) for d in (torch.float64, torch.float32))
    _compare(state, want, own, result)
    _with_dropout(task, model, result)


def _compare(state: dict[str, Any], want: dict[str, Any], own: dict[str, Any], result: Result) -> None:
    bad: list[tuple[float, str]] = []
    for name, value in want.items():
        if name not in state:
            if not name.startswith("optimizer."):
                bad.append((np.inf, f"{name} is missing"))
            continue
        ours, theirs = error(state[name], value), error(own[name], value)
        if not np.isfinite(ours) and not np.isfinite(theirs):
            continue
        used = ours / (FACTOR * theirs + FLOOR)
        if not used <= 1:
            bad.append((ours, f"{name} {ours:.1e} (PyTorch {theirs:.1e})"))
        if used > result.used:
            result.used, result.worst, result.torch_worst, result.worst_name = used, ours, theirs, name
    bad.sort(key=lambda b: -b[0])
    result.verdict = "differs" if bad else "ok"
    result.note = f"{len(bad)} of {len(want)} differ: " + "; ".join(t for _, t in bad[:6]) if bad else ""


def _with_dropout(task: Task, model: nn.Module, result: Result) -> None:
    """One more capture in train mode: dropout, drop path and noise must be captured too."""
    model.train()
    try:
        capture(lambda batch: task.loss(model, batch), optimizer=make_optimizer(task, model), batch=task.batch,
                modules=model, evaluate=False)
        result.dropout = "ok"
    except Exception as problem:
        result.dropout = f"{type(problem).__name__}: {problem}"[:300]
        result.verdict = "dropout" if result.verdict == "ok" else result.verdict


def families(groups: Iterable[str]) -> list[Family]:
    """All families of the groups; a group whose package is missing gives none."""
    import coverage_hf
    import coverage_plain
    import coverage_vision

    sources: dict[str, Callable[[], list[Family]]] = {
        "plain": coverage_plain.families, "hf": coverage_hf.families, "timm": coverage_vision.timm_families,
        "pytorchcv": coverage_vision.pytorchcv_families,
    }
    found: list[Family] = []
    for group in groups or sources:
        found += sources[group]()
    return found


def row(result: Result) -> str:
    """One line of the table."""
    extra = f"  {result.note or result.dropout}" if result.verdict != "ok" else ""
    baked = f"  baked in: {len(result.baked)}" if result.baked else ""
    return (f"{result.name:34} {result.verdict:11} {result.nodes:6} {result.launches:6} {result.programs:5} "
            f"{result.paths:6.1%} {result.worst:8.1e} {result.torch_worst:8.1e} {result.capture_s:6.1f} "
            f"{result.total_s:6.1f}{baked}{extra}")


HEADER = (f"{'family':34} {'verdict':11} {'nodes':>6} {'launch':>6} {'progs':>5} {'paths':>6} {'worst':>8} "
          f"{'torch':>8} {'capt s':>6} {'all s':>6}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names that contain one of these, comma-separated")
    parser.add_argument("--group", default="", help="plain, hf, timm, pytorchcv; comma-separated")
    parser.add_argument("--on", default="opencl", help="the device")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--json", type=Path, help="also write every result here, as it comes")
    given = parser.parse_args()
    wanted = [w for w in given.only.split(",") if w]
    chosen = [f for f in families([g for g in given.group.split(",") if g])
              if not wanted or any(w == f.name if w in f.name.split() else w in f.name for w in wanted)]
    if given.list:
        print("\n".join(f"{f.group:10} {f.name}" for f in chosen))
        return 0
    results: list[Result] = []
    print(HEADER)
    for family in chosen:
        results.append(try_family(family, given.on, given.steps))
        print(row(results[-1]), flush=True)
        if given.json:
            given.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    tried = [r for r in results if r.verdict != "skipped"]
    good = [r for r in tried if r.verdict == "ok"]
    print(f"{len(good)} of {len(tried)} families ok; "
          + ", ".join(f"{sum(r.verdict == v for r in tried)} {v}" for v in ("differs", "unsupported", "error", "dropout")))
    return 0 if len(good) == len(tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
