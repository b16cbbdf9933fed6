"""Single kernels against PyTorch's op for the same: GFLOP/s and ratios from one run.

    python bench/kernels.py [--on opencl] [--only matmul,conv,conv_input,conv_weight]
                            [--match TEXT] [--candidates] [--rounds 7] [--seconds 0.3] [--json FILE]

The shapes are those of the suite's layers, and square products. Ours is the time of a node's
launches by OpenCL's own events; theirs is CUDA's events on an NVIDIA device (TF32 off), the host's
clock on a CPU. They take turns. Ratios are ours / theirs of the medians: below 1, Handheld is
faster. `error` is the distance to PyTorch's result. With --candidates every choice that the kernel
offers is timed, and the best is shown beside the one that is taken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import torch

from handheld.backends.opencl import Found, find
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node, Origin, Tensor, View, contiguous_strides
from handheld.graph.program import Instr
from handheld.kernels import contract
from handheld.kernels.base import Buffer, Float, Lowered, Workspace

Shape = tuple[int, ...]
Choice = Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """A node: `t` says which of a matmul's operands are transposed in memory; a convolution is
    given by x and w whatever its direction."""

    op: str
    a: Shape
    b: Shape
    t: str = ""
    stride: int = 1
    padding: int = 0

    @property
    def name(self) -> str:
        sizes = " ".join("x".join(map(str, shape)) for shape in (self.a, self.b))
        more = f" /{self.stride}" if self.stride > 1 else ""
        return f"{self.op:11} {sizes}{more}{' ' + self.t if self.t else ''}"


#: m, n, k, and which operands are transposed: forward "b", gradient in x "", in w "a"
PRODUCTS = (
    ((2048,), 2048, 2048, ""), ((4096,), 4096, 4096, ""),
    ((2048,), 1024, 256, "b"), ((2048,), 256, 1024, ""), ((1024,), 256, 2048, "a"),
    ((2048,), 5000, 256, "b"), ((2048,), 256, 5000, ""), ((5000,), 256, 2048, "a"),
    ((2048,), 768, 256, "b"), ((2048,), 256, 256, ""), ((256,), 256, 2048, "a"),
    ((64, 128), 128, 64, "b"), ((64, 128), 64, 128, ""), ((64, 128), 64, 128, "a"),
    ((128,), 1024, 784, "b"), ((128,), 1024, 1024, "b"), ((1024,), 1024, 128, "a"),
    ((64,), 120, 400, "b"), ((32,), 10, 1280, "b"),
)
#: x, out channels, kernel, stride, padding
CONVOLUTIONS = (
    ((64, 1, 28, 28), 6, 5, 1, 2), ((64, 6, 14, 14), 16, 5, 1, 0),
    ((32, 3, 32, 32), 32, 3, 2, 1), ((32, 16, 16, 16), 96, 1, 1, 0), ((32, 144, 8, 8), 24, 1, 1, 0),
    ((32, 64, 2, 2), 384, 1, 1, 0), ((32, 576, 2, 2), 96, 1, 1, 0), ((32, 960, 1, 1), 160, 1, 1, 0),
    ((32, 3, 32, 32), 64, 3, 1, 1), ((32, 64, 32, 32), 64, 3, 1, 1),
    ((32, 64, 32, 32), 128, 3, 2, 1), ((32, 64, 32, 32), 128, 1, 2, 0),
    ((32, 128, 16, 16), 128, 3, 1, 1), ((32, 256, 8, 8), 256, 3, 1, 1),
    ((32, 512, 4, 4), 512, 3, 1, 1),
    ((4, 3, 224, 224), 64, 7, 2, 3), ((4, 256, 56, 56), 64, 1, 1, 0),
    ((4, 64, 56, 56), 256, 1, 1, 0), ((4, 1024, 14, 14), 256, 1, 1, 0),
    ((4, 256, 14, 14), 256, 3, 1, 1),
    ((8, 16, 55, 55), 64, 3, 1, 1), ((8, 512, 13, 13), 64, 1, 1, 0),
    ((16, 64, 32, 32), 128, 4, 2, 1), ((16, 256, 8, 8), 512, 4, 2, 1),
)


def rows(large: bool) -> list[Row]:
    found = []
    for (*batch, m), n, k, t in PRODUCTS:
        if m * n * k < 2**36 or large:
            a = (*batch, k, m) if t == "a" else (*batch, m, k)
            found.append(Row("matmul", a, (*batch, n, k) if t == "b" else (*batch, k, n), t))
    for op in ("conv", "conv_input", "conv_weight"):
        for x, out, kernel, stride, padding in CONVOLUTIONS:
            found.append(Row(op, x, (out, x[1], kernel, kernel), "", stride, padding))
    return found


# ---------------------------------------------------------------------------------- theirs


def operation(row: Row) -> tuple[list[Shape], Callable[..., torch.Tensor]]:
    """The shapes of what is read, and PyTorch's way from them to the result."""
    if row.op == "matmul":
        turn = {"a": lambda a, b: a.mT @ b, "b": lambda a, b: a @ b.mT, "": torch.matmul}
        return [row.a, row.b], turn[row.t]
    pair, pad = (row.stride, row.stride), (row.padding, row.padding)
    if row.op == "conv":
        return [row.a, row.b], lambda x, w: torch.conv2d(x, w, None, pair, pad)
    size = (torch.tensor(row.a[2:]) + 2 * row.padding - row.b[2]) // row.stride + 1
    y = (row.a[0], row.b[0], *size.tolist())
    which = row.op == "conv_weight"

    def gradient(dy: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        x, w = (other, blank(row.b, dy)) if which else (blank(row.a, dy), other)
        found: Any = torch.ops.aten.convolution_backward(
            dy, x, w, None, pair, pad, (1, 1), False, (0, 0), 1, (not which, which, False))
        return found[int(which)]

    return [y, row.a if which else row.b], gradient


_blanks: dict[tuple[Shape, str], torch.Tensor] = {}


def blank(shape: Shape, like: torch.Tensor) -> torch.Tensor:
    """A tensor of which only the shape matters."""
    return _blanks.setdefault((shape, like.device.type), torch.zeros(shape, device=like.device))


class Theirs:
    def __init__(self, row: Row, where: str) -> None:
        shapes, self.run = operation(row)
        generator = torch.Generator().manual_seed(0)
        self.host = [torch.randn(shape, generator=generator) for shape in shapes]
        self.inputs = [t.to(where) for t in self.host]
        self.result = self.run(*self.inputs).cpu()

    def seconds(self, times: int) -> float:
        """Of one of several calls."""
        if self.inputs[0].device.type == "cpu":
            started = time.perf_counter()
            for _ in range(times):
                self.run(*self.inputs)
            return (time.perf_counter() - started) / times
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(50_000 * times)  # type: ignore[no-untyped-call]  # the host gets ahead
        first.record()
        for _ in range(times):
            self.run(*self.inputs)
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3 / times


# ---------------------------------------------------------------------------------- ours


def graph_of(row: Row, inputs: list[torch.Tensor], out: Shape) -> Graph:
    """A graph of one node, its operands as PyTorch's op reads them."""
    shapes = [tuple(t.shape) for t in inputs] + [out]
    tensors = {i: Tensor(i, s, "f32", "input" if i < 2 else "activation")
               for i, s in enumerate(shapes)}
    views = []
    for i, t in enumerate(inputs):
        seen = t.mT if row.t == "ab"[i] else t
        views.append(View(i, tuple(seen.shape), tuple(seen.stride()), 0))
    attrs: dict[str, Any] = {"shape": out}
    if row.op != "matmul":
        attrs.update(stride=(row.stride,) * 2, padding=(row.padding,) * 2, dilation=(1, 1),
                     groups=1)
    if row.op != "conv_weight":
        attrs.update(program=(Instr("acc", "f32"),), stores=(0,))
    node = Node(row.op, tuple(views), (2,), attrs, Origin("forward", "", row.op))
    whole = View(2, out, contiguous_strides(out), 0)
    return Graph("bench", tensors, (node,), (("a", 0, "float32"), ("b", 1, "float32")), {}, (),
                 (("y", whole, "float32"),))


@dataclass
class Device:
    found: Found
    queue: Any

    @staticmethod
    def open(spec: str) -> Device:
        found = find(spec)
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        return Device(found, cl.CommandQueue(cl.Context([found.device]), properties=profiling))


class Ours:
    """A lowered node with its arguments bound."""

    def __init__(self, device: Device, graph: Graph, lowered: Lowered, inputs: list[Any]) -> None:
        self.queue, self.why = device.queue, lowered.why
        context, flags = self.queue.context, cl.mem_flags
        copied = flags.READ_WRITE | flags.COPY_HOST_PTR
        self.out = np.zeros(graph.tensors[2].shape, np.float32)
        self.buffers = [cl.Buffer(context, copied, hostbuf=a) for a in (*inputs, self.out)]
        self.scratch = [cl.Buffer(context, flags.READ_WRITE, n) for n in lowered.workspace]
        programs = {s: cl.Program(context, s).build(["-w"])
                    for s in {launch.source for launch in lowered.launches}}
        self.launches = []
        for launch in lowered.launches:
            kernel = cl.Kernel(programs[launch.source], launch.kernel)
            kernel.set_args(*map(self.argument, launch.args))
            self.launches.append((kernel, launch.global_size, launch.local_size))

    def argument(self, arg: Any) -> Any:
        if isinstance(arg, Buffer):
            return self.buffers[arg.tensor]
        if isinstance(arg, Workspace):
            return self.scratch[arg.index]
        return np.float32(arg.value) if isinstance(arg, Float) else np.int32(arg.value)

    def seconds(self, times: int) -> float:
        events = [cl.enqueue_nd_range_kernel(self.queue, *launch)
                  for _ in range(times) for launch in self.launches]
        self.queue.finish()
        return sum(e.profile.end - e.profile.start for e in events) / 1e9 / times

    def result(self) -> np.ndarray:
        cl.enqueue_copy(self.queue, self.out, self.buffers[2])
        return self.out


# ---------------------------------------------------------------------------------- turns


def medians(runs: list[Callable[[int], float]], options: argparse.Namespace) -> list[float]:
    """Seconds of one call of each, from rounds in which they take turns."""
    counts = []
    for run in runs:
        run(1)
        counts.append(max(1, min(50, round(0.005 / max(run(1), 1e-6)))))
    times: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for _ in range(options.rounds):
        for run, count, into in zip(runs, counts, times):
            into.append(run(count))
        if time.perf_counter() - started > options.seconds and len(times[0]) > 1:
            break
    return [statistics.median(t) for t in times]


def compare(row: Row, device: Device, where: str, options: argparse.Namespace) -> dict[str, Any]:
    theirs, caps = Theirs(row, where), device.found.caps
    arrays = [t.numpy() for t in theirs.host]
    graph = graph_of(row, theirs.host, tuple(theirs.result.shape))
    node, lower = graph.nodes[0], getattr(contract, f"lower_{row.op}")
    want = theirs.result.numpy()

    def made(choice: Choice | None) -> tuple[Ours, float]:
        ours = Ours(device, graph, lower(node, graph, caps, choice), arrays)
        ours.seconds(1)
        return ours, float(np.linalg.norm(ours.result() - want) / (np.linalg.norm(want) or 1))

    ours, error = made(None)
    mine, other = medians([ours.seconds, theirs.seconds], options)
    flops = contract.flops(node, graph)
    result: dict[str, Any] = {
        "row": row.name, "flops": flops, "why": ours.why, "handheld_us": mine * 1e6,
        "torch_us": other * 1e6, "handheld_gflops": flops / mine / 1e9,
        "torch_gflops": flops / other / 1e9, "ratio": mine / other, "error": error,
    }
    if options.candidates:
        tried: list[dict[str, Any]] = []
        for choice in contract.candidates(node, graph, caps):
            try:
                one, wrong = made(choice)
            except (cl.Error, PlanError) as problem:
                tried.append({"choice": dict(choice), "failed": str(problem)[:200]})
                continue
            (spent,) = medians([one.seconds], options)
            tried.append({"choice": dict(choice), "why": one.why, "us": spent * 1e6,
                          "error": wrong})
        result["candidates"] = sorted(tried, key=lambda t: t.get("us", math.inf))
    return result


def line(result: dict[str, Any]) -> str:
    text = (f"{result['row']:44} {result['handheld_us']:9.1f} {result['torch_us']:9.1f} us "
            f"{result['handheld_gflops']:9.0f} {result['torch_gflops']:9.0f} GFLOP/s "
            f"{result['ratio']:6.2f}  {result['error']:.0e}  {result['why']}")
    for best in result.get("candidates", [])[:3]:
        if "us" in best:
            rate = result["flops"] / best["us"] / 1e3
            text += (f"\n{'':44} {best['us']:9.1f} {'':12} {rate:9.0f} {best['error']:.0e} "
                     f"{best['why']} {json.dumps(best['choice'])}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="matmul,conv,conv_input,conv_weight")
    parser.add_argument("--match", default="", help="only rows whose name holds this text")
    parser.add_argument("--candidates", action="store_true", help="time every choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of rounds, for each row")
    parser.add_argument("--json", help="write all figures here")
    options = parser.parse_args()
    device = Device.open(options.on)
    caps = device.found.caps
    where = "cuda" if torch.cuda.is_available() and "NVIDIA" in caps.vendor else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(caps.compute_units if caps.kind == "cpu" else os.cpu_count() or 1)
    print(f"{caps.name} ({caps.driver}) beside PyTorch {torch.__version__} on {where}")
    heads = f"{'handheld':>9} {'torch':>9}"
    print(f"{'':44} {heads}    {heads}          ratio  error")
    results = []
    for row in rows(large=caps.kind == "gpu"):
        if row.op in options.only.split(",") and options.match in row.name:
            results.append(compare(row, device, where, options))
            print(line(results[-1]), flush=True)
    for op in options.only.split(","):
        logs = [math.log(r["ratio"]) for r in results if r["row"].split()[0] == op]
        if logs:
            print(f"{op}: geometric mean {math.exp(sum(logs) / len(logs)):.2f} of {len(logs)}")
    if options.json:
        facts = {"device": caps.to_json(), "torch": torch.__version__, "where": where}
        Path(options.json).write_text(json.dumps({**facts, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
