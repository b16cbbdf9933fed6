"""Which models capture and train, and do they give what PyTorch gives?

    python scripts/coverage.py                       # every family that is installed
    python scripts/coverage.py --only gpt2,resnet    # names that contain one of these
    python scripts/coverage.py --group hf --json out.json --jobs 4

Each family is a small model with random weights. Its training step (forward, backward, SGD with
momentum) is captured, planned on a device and run for a few steps. Loss, every parameter, every
buffer and every momentum (that is: every gradient) are held against PyTorch in float64 from the
same start; what PyTorch's own float32 errs against it is the measure. Dropout is off for that, and
on for one more capture.

A family is `ok` if its graph, computed in float64, gives what PyTorch gives in float64 (`EXACT`),
and if on the device nothing differs by more than `FACTOR` times PyTorch's own error plus `FLOOR`.
Small batches through batch norm and ReLU are chaotic: one sign that flips moves a gradient by a
percent in PyTorch itself. So a few tensors may differ by more (`flips`) where the loss and the
median tensor do not.
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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))

from coverage_family import Family, Task

from handheld import capture
from handheld.errors import HandheldError, UnsupportedOp
from handheld.graph.graph import Graph

FACTOR, FLOOR, EXACT = 10.0, 2e-5, 1e-5
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
    exact: float = 0.0  # largest difference of the graph in float64 from PyTorch in float64
    flips: int = 0
    capture_s: float = 0.0
    total_s: float = 0.0
    baked: list[str] = field(default_factory=list)
    no_gradient: list[str] = field(default_factory=list)
    dropout: str = ""


def unsettle(model: nn.Module) -> None:
    """Noise on parameters whose elements are all equal. Zero biases and unit scales put means on
    zero, and with them the corners of activations: there every rounding is another gradient."""
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() and p.dtype.is_floating_point and bool((p == p.reshape(-1)[0]).all()):
                p.add_(torch.randn_like(p), alpha=0.1)


def still(task: Task, model: nn.Module) -> nn.Module:
    """Dropout off, batch statistics on: what can be compared."""
    model.train(task.mode == "train")
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
        elif "Drop" in type(module).__name__:
            module.training = False  # not what is inside: some wrap the whole layer
    return model


class Narrow(TorchDispatchMode):
    """Notices float32 where all should be float64: models that cast on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen |= isinstance(made, torch.Tensor) and made.dtype == torch.float32
        return made


class Wide(TorchFunctionMode):
    """float64 where a model asks for float32 by name, and then mixes the two: what it computes
    without that, exactly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})

    def __enter__(self) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        torch.set_default_dtype(torch.float32)
        super().__exit__(*problem)


class Eager:
    """The same training in PyTorch itself."""

    wide: Any = nullcontext()

    def __init__(self, task: Task, model: nn.Module, dtype: torch.dtype) -> None:
        self.task, self.model = task, still(task, model.to(dtype))
        self.batch = {k: v.to(dtype) if v.dtype.is_floating_point else v for k, v in task.batch.items()}
        self.optimizer = make_optimizer(task, model)

    @staticmethod
    def exact(task: Task, model: nn.Module) -> Eager:
        """In float64, also where the model would not run in it by itself."""
        made = Eager(task, model, torch.float64)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                task.loss(copy.deepcopy(made.model), made.batch)
        except RuntimeError:
            made.wide = Wide()
        return made

    def step(self) -> float:
        with self.wide:
            loss = self.task.loss(self.model, self.batch)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and momenta under the names that a trainer's state has."""
        found: dict[str, torch.Tensor] = {}
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            found[name] = tensor.detach()
            held = self.optimizer.state.get(tensor, {}).get("momentum_buffer")
            if held is not None:
                found[f"optimizer.{name}.momentum_buffer"] = held
        return found

    def state(self) -> dict[str, np.ndarray]:
        return {k: (v.double() if v.dtype.is_floating_point else v).numpy().copy() for k, v in self._tensors().items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(torch.from_numpy(np.asarray(state[name])).reshape(tensor.shape))


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)


def error(got: Any, want: Any, floor: float = 0.0) -> float:
    """Relative norm of the difference; what is smaller than `floor` counts as that large."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64).reshape(np.shape(got))
    gap = np.subtract(got, want, out=np.zeros_like(got), where=got != want)  # ±inf are values too
    scale = max(float(np.linalg.norm(want[np.isfinite(want)])), floor) or 1.0
    return float(np.linalg.norm(gap)) / scale


def has_nan(state: dict[str, Any]) -> bool:
    return any(bool(np.isnan(v).any()) for v in state.values())


def floor_of(want: dict[str, Any]) -> float:
    """A millionth of the largest gradient: what is smaller is zero but for rounding."""
    sizes = [float(np.linalg.norm(v)) for k, v in want.items() if k.endswith(".momentum_buffer")]
    return 1e-6 * max(sizes, default=0.0)


def path_share(graph: Graph) -> float:
    """Share of nodes with a module path. The loss function is a place too, but what only the
    backward pass puts there has lost its module."""
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
    step = capture(
        lambda batch: task.loss(model, batch),
        optimizer=make_optimizer(task, model),
        batch=task.batch,
        modules=model,
        evaluate=False,
    )
    result.capture_s = time.perf_counter() - begun
    graph = step.graphs["train"]
    result.nodes = len(graph.nodes)
    result.paths = path_share(graph)
    result.baked = list(graph.notes.get("frozen", ()))
    result.no_gradient = step.no_gradient()

    start = dict(step.values)
    plan = step.plan(device)
    result.launches, result.programs = plan.graphs["train"].launches, plan.graphs["train"].programs
    own = Eager(task, twins[torch.float32], torch.float32)
    reference = Eager.exact(task, twins[torch.float64])
    narrow = Narrow()
    result.verdict = "ok"
    with step.plan("reference:cpu").start(float64=True) as trainer:
        exact: dict[str, Any] = {"loss": float(trainer.step(task.batch)), **trainer.state()}
    step.values.update(start)
    with plan.start() as trainer:
        for number in range(steps):
            got: dict[str, Any] = {"loss": float(trainer.step(task.batch))}
            theirs: dict[str, Any] = {"loss": own.step()}
            want: dict[str, Any] = dict(theirs)
            if reference is not own:
                try:
                    with narrow:
                        want = {"loss": reference.step()}
                    if has_nan(want | reference.state()) and not has_nan(theirs | own.state()):
                        want, reference = dict(theirs), own
                except RuntimeError:  # not in float64: then PyTorch's float32 is the measure
                    reference = own
            want |= reference.state()
            if number == 0 and reference is not own:
                loose = FACTOR if narrow.seen else 0.0
                _check_exact(exact, want, theirs | own.state(), loose, result)
            _compare(got | trainer.state(), want, theirs | own.state(), number, result)
            # the next step starts from the reference, in float32, on all sides
            again = {
                k: v.astype(np.float32).astype(v.dtype) if v.dtype.kind == "f" else v
                for k, v in reference.state().items()
            }
            known = {alias for slot in step.slots.values() for alias in slot.names}
            trainer.load({k: v for k, v in again.items() if k in known}, strict=False)
            reference.load(again)
            own.load(again)
    _with_dropout(task, model, result)


def _check_exact(got: dict[str, Any], want: dict[str, Any], own: dict[str, Any], loose: float, result: Result) -> None:
    """With `loose`, a reference that is only as exact as so many times PyTorch's own error."""
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


def _compare(got: dict[str, Any], want: dict[str, Any], own: dict[str, Any], step: int, result: Result) -> None:
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
        capture(
            lambda batch: task.loss(model, batch),
            optimizer=make_optimizer(task, model),
            batch=task.batch,
            modules=model,
            evaluate=False,
        )
        result.dropout = "ok"
    except Exception as problem:
        result.dropout = f"{type(problem).__name__}: {problem}"[:300]
        result.verdict = "dropout" if result.verdict == "ok" else result.verdict


def families(groups: Iterable[str]) -> list[Family]:
    """All families of the groups; a group whose package is missing gives none."""
    import coverage_hf
    import coverage_hf_more
    import coverage_hf_wide
    import coverage_plain
    import coverage_plain_more
    import coverage_vision

    sources: dict[str, Callable[[], list[Family]]] = {
        "plain": lambda: [*coverage_plain.families(), *coverage_plain_more.families()],
        "hf": lambda: [*coverage_hf.families(), *coverage_hf_more.families(), *coverage_hf_wide.families()],
        "timm": coverage_vision.timm_families,
        "pytorchcv": coverage_vision.pytorchcv_families,
    }
    found: list[Family] = []
    for group in groups or sources:
        found += sources[group]()
    return found


def results_of(chosen: list[Family], device: str, steps: int, jobs: int) -> Iterator[Result]:
    """The families' results as they come, from so many processes."""
    if jobs == 1:
        yield from (try_family(family, device, steps) for family in chosen)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread) as pool:
        waiting = [pool.submit(try_named, f.group, f.name, device, steps) for f in chosen]
        yield from (done.result() for done in as_completed(waiting))


def one_thread() -> None:
    torch.set_num_threads(1)


def try_named(group: str, name: str, device: str, steps: int) -> Result:
    """As `try_family`, in another process."""
    return try_family(next(f for f in families([group]) if f.name == name), device, steps)


def row(result: Result) -> str:
    """One line of the table."""
    extra = f"  {result.note or result.dropout}" if result.verdict != "ok" else ""
    baked = f"  baked in: {len(result.baked)}" if result.baked else ""
    return (
        f"{result.name:34} {result.verdict:11} {result.nodes:6} {result.launches:6} "
        f"{result.programs:5} {result.paths:6.1%} {result.exact:8.1e} {result.worst:8.1e} "
        f"{result.torch_worst:8.1e} {result.flips:5} "
        f"{result.capture_s:6.1f} {result.total_s:6.1f}{baked}{extra}"
    )


HEADER = (
    f"{'family':34} {'verdict':11} {'nodes':>6} {'launch':>6} {'progs':>5} {'paths':>6} "
    f"{'exact':>8} {'worst':>8} {'torch':>8} {'flips':>5} {'capt s':>6} {'all s':>6}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names that contain one of these, comma-separated")
    parser.add_argument("--group", default="", help="plain, hf, timm, pytorchcv; comma-separated")
    parser.add_argument("--on", default="opencl", help="the device")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=1, help="so many processes")
    parser.add_argument("--list", action="store_true", help="names only")
    parser.add_argument("--json", type=Path, help="also write every result here, as it comes")
    given = parser.parse_args()
    wanted = [w for w in given.only.split(",") if w]
    chosen = [
        f
        for f in families([g for g in given.group.split(",") if g])
        if not wanted or any(w == f.name if w in f.name.split() else w in f.name for w in wanted)
    ]
    if given.list:
        print("\n".join(f"{f.group:10} {f.name}" for f in chosen))
        return 0
    results: list[Result] = []
    print(HEADER)
    for result in results_of(chosen, given.on, given.steps, given.jobs):
        results.append(result)
        print(row(result), flush=True)
        if given.json:
            given.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    tried = [r for r in results if r.verdict != "skipped"]
    good = [r for r in tried if r.verdict == "ok"]
    print(
        f"{len(good)} of {len(tried)} families ok; "
        + ", ".join(f"{sum(r.verdict == v for r in tried)} {v}" for v in ("differs", "unsupported", "error", "dropout"))
    )
    return 0 if len(good) == len(tried) else 1


if __name__ == "__main__":
    raise SystemExit(main())
