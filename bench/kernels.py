"""Single kernels against PyTorch's op for the same: rates, shares of the ceiling, ratios, one run.

    python bench/kernels.py [--on opencl] [--only matmul,conv,batch] [--match TEXT] [--candidates]
                            [--rounds 7] [--seconds 0.3] [--json FILE] [--plot FILE.html]

The shapes are those of the suite's layers, square products and, on a GPU, some that no cache holds.
Ours is the time of a row's launches by OpenCL's own events; theirs is CUDA's events on an NVIDIA
device (TF32 off), the host's clock on a CPU. They take turns, with a pause between: threads that
spin for more work would disturb the next. Ratios are ours / theirs of the medians: below 1,
Handheld is faster. `error` is the distance to PyTorch's result.

`share` is the time that a kernel takes which reads and writes as many bytes and does nothing else
(bare.py; it takes turns with the other two) over ours; of contractions the time that their
arithmetic takes at the rate that `handheld doctor --ceilings` measured, where that is more. Each
tensor counts once; `walked` counts what a reduction has to read again (a batch norm reads its input
for the mean, for the variance and to apply them). `small`: at the device's best, outside caches,
they would take less time than empty launches do, so the share says nothing.

`choice`: tuned or best (a record knows the shape), absent (none does), — (one variant). With
--candidates every choice that a contraction offers is timed, the best shown below the one taken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import charts_page
import contractions
import numpy as np
import pyopencl as cl
import streams
import torch
import tuned
from bare import Bare
from contractions import Contraction
from result_file import Row, Value, device_id, save
from streams import Stream, Update

import handheld
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.devices import OpenCLDevice, find
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.session import OpenCLSession
from handheld.backends.opencl.widen import texts_of
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph
from handheld.kernels import contract
from handheld.kernels.base import Lowered
from handheld.measure.ceilings import Ceilings
from handheld.plan.lowering import lower
from handheld.report.charts import Axis, Reference, Series, bars

PAUSE = 0.01
Seconds = Callable[[int], float]  # of one of so many runs


@dataclass
class Subject:
    """A row that is ready to be timed. Bytes: read and written once, and read again."""

    family: str
    name: str
    ours: Seconds
    theirs: Seconds
    error: float
    why: str
    choice: str
    launches: int
    read: int
    written: int
    again: int = 0
    #: whether outputs take the place of inputs
    in_place: bool = False
    flops: int = 0
    candidates: list[dict[str, Any]] = field(default_factory=list)
    close: Callable[[], None] = lambda: None


# ---------------------------------------------------------------------------------- theirs


def pytorch(run: Callable[[], Any], where: str) -> Seconds:
    def on_cpu(times: int) -> float:
        run()
        started = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - started) / times

    def on_cuda(times: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        torch.cuda._sleep(50_000 * times)  # type: ignore[no-untyped-call]  # the host gets ahead
        first.record()
        for _ in range(times):
            run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3 / times

    return on_cpu if where == "cpu" else on_cuda


# ---------------------------------------------------------------------------------- ours


def by_events(queue: Any, launches: list[Any]) -> Seconds:
    """The device's own time of some launches, after one round that wakes it up."""

    def seconds(times: int) -> float:
        events = [cl.enqueue_nd_range_kernel(queue, *launch) for _ in range(times + 1) for launch in launches]
        queue.finish()
        return sum(e.profile.end - e.profile.start for e in events[len(launches) :]) / 1e9 / times

    return seconds


@dataclass
class Device:
    found: OpenCLDevice
    queue: Any
    where: str
    ceilings: Ceilings
    records: tuned.Tuning

    @property
    def caps(self) -> DeviceCaps:
        return self.found.caps

    @staticmethod
    def open(spec: str, where: str) -> Device:
        found = find(spec)
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(cl.Context([found.device]), properties=profiling)
        return Device(found, queue, where, handheld.ceilings(spec), tuned.known(found.caps)[0])


class Bound:
    """A lowered contraction with its arguments bound."""

    def __init__(self, device: Device, graph: Graph, lowered: Lowered, inputs: list[Any], out: Any) -> None:
        self.queue, self.why = device.queue, lowered.why
        context, flags = self.queue.context, cl.mem_flags
        copied = flags.READ_WRITE | flags.COPY_HOST_PTR
        self.out = np.zeros(out, np.float32)
        self.buffers = [cl.Buffer(context, copied, hostbuf=a) for a in (*inputs, self.out)]
        self.scratch = [cl.Buffer(context, flags.READ_WRITE, n) for n in lowered.workspace]
        programs = {given: build(context, text) for given, text in texts_of(lowered.launches, device.caps).items()}
        places = OwnBuffers(context, graph, dict(enumerate(self.buffers)), self.scratch)
        self.launches = []
        for launch in lowered.launches:
            kernel = cl.Kernel(programs[launch.text], launch.kernel)
            bind(kernel, launch, places)
            self.launches.append((kernel, launch.global_size, launch.local_size))
        self.seconds = by_events(self.queue, self.launches)

    def close(self) -> None:
        """Also what keeps the buffers alive until then: a kernel does not."""
        for buffer in (*self.buffers, *self.scratch):
            buffer.release()

    def result(self) -> np.ndarray:
        self.seconds(1)
        cl.enqueue_copy(self.queue, self.out, self.buffers[2])
        return self.out


def contraction(row: Contraction, device: Device, options: argparse.Namespace) -> Subject:
    shapes, run = contractions.operation(row)
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(shape, generator=generator) for shape in shapes]
    inputs = [t.to(device.where) for t in host]
    want = run(*inputs).cpu().numpy()
    graph = contractions.graph_of(row, host, want.shape)
    node, caps = graph.nodes[0], device.caps

    def made(choice: Any) -> tuple[Bound, float]:
        lowered = lower(node, graph, caps, choice)
        bound = Bound(device, graph, lowered, [t.numpy() for t in host], want.shape)
        return bound, distance(bound.result(), want)

    standing, choice = tuned.standing(node, graph, caps, device.records)
    ours, error = made(choice)
    tried: list[dict[str, Any]] = []
    for other in contract.candidates(node, graph, caps) if options.candidates else ():
        try:
            one, wrong = made(other)
        except (cl.Error, PlanError) as problem:
            tried.append({"choice": dict(other), "failed": str(problem)[:200]})
            continue
        (spent,) = medians([one.seconds], options)
        one.close()
        tried.append({"choice": dict(other), "why": one.why, "us": spent * 1e6, "error": wrong})
    return Subject(
        row.op,
        row.name,
        ours.seconds,
        pytorch(lambda: run(*inputs), device.where),
        error,
        ours.why,
        standing,
        len(ours.launches),
        sum(t.nbytes for t in host),
        want.nbytes,
        flops=contract.flops(node, graph),
        close=ours.close,
        candidates=sorted(tried, key=lambda t: t.get("us", math.inf)),
    )


def stream(row: Stream | Update, device: Device, options: argparse.Namespace) -> Subject:
    """Planned as a step is: memory where the plan puts it, kernels as it fuses them."""
    host = row.make() if isinstance(row, Stream) else []
    step, name = streams.step_of(row, host)
    plan = step.plan(options.on)
    session = OpenCLSession(plan, profiling=True)
    part = plan.graphs[name]
    nodes = range(len(part.graph.nodes))
    if isinstance(row, Update):
        nodes = [
            i
            for i in nodes
            if part.graph.nodes[i].origin.phase == "update" and part.graph.nodes[i].origin.path != "handheld"
        ]
        run, count = streams.pytorch_update(row, device.where)
        error, read, written = math.nan, 12 * count, 8 * count
    else:
        inputs = [t.to(device.where) for t in host]
        want = streams.outputs(row.run(*inputs))
        for given, t in zip(part.graph.inputs, host, strict=True):
            kind = np.int32 if t.dtype == torch.int64 else np.float32
            session.set_tensor(name, given.tensor, t.numpy().astype(kind))
        session.run(name)
        error = max(
            distance(session.read_tensor(name, shown.view.tensor), t.cpu().numpy())
            for shown, t in zip(part.graph.outputs, want, strict=True)
        )
        read = sum(size(t) for t in host) if row.read is None else row.read
        written = sum(size(t) for t in want)

        def run() -> Any:
            return row.run(*inputs)

    launches = [launch[1:] for i in nodes for launch in session.launches(name, i)]
    return Subject(
        row.family,
        row.name,
        by_events(session.queue, launches),
        pytorch(run, device.where),
        error,
        "; ".join(dict.fromkeys(part.lowered[i].why for i in nodes)),
        "—",
        len(launches),
        read,
        written,
        sum(streams.extra_walks(part.graph.nodes[i], part.graph) for i in nodes),
        isinstance(row, Update),
        close=session.close,
    )


def size(tensor: torch.Tensor) -> int:
    """Bytes on the device: int64 is i32 there."""
    return tensor.numel() * min(tensor.element_size(), 4)


def distance(got: np.ndarray, want: np.ndarray) -> float:
    gap = got.reshape(want.shape).astype(np.float64) - want
    return float(np.linalg.norm(gap) / (np.linalg.norm(want) or 1))


# ---------------------------------------------------------------------------------- turns


def medians(runs: list[Seconds], options: argparse.Namespace) -> list[float]:
    """Seconds of one call of each, from rounds in which they take turns."""
    counts = []
    for run in runs:
        run(1)
        counts.append(max(1, min(50, round(0.005 / max(run(1), 1e-6)))))
    times: list[list[float]] = [[] for _ in runs]
    started = time.perf_counter()
    for _ in range(options.rounds):
        for run, count, into in zip(runs, counts, times, strict=True):
            time.sleep(PAUSE)
            into.append(run(count))
        if time.perf_counter() - started > options.seconds and len(times[0]) > 2:
            break
    return [statistics.median(t) for t in times]


def compare(subject: Subject, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    bare = Bare(device.queue, device.caps, subject.read, subject.written, subject.in_place)
    mine, other, best = medians([subject.ours, subject.theirs, by_events(device.queue, bare.launches)], options)
    bare.close()
    moved = subject.read + subject.written
    best = max(best, subject.flops / device.ceilings.fp32.median)
    walked = best * (moved + subject.again) / moved
    empty = device.ceilings.launch_device_s.median * max(subject.launches, len(bare.launches))
    small = max(moved / device.ceilings.bandwidth, subject.flops / device.ceilings.fp32.median) < empty
    return {
        "family": subject.family,
        "row": subject.name,
        "why": subject.why,
        "choice": subject.choice,
        "launches": subject.launches,
        "flops": subject.flops,
        "read_bytes": subject.read,
        "written_bytes": subject.written,
        "read_again_bytes": subject.again,
        "handheld_us": mine * 1e6,
        "torch_us": other * 1e6,
        "handheld_gflops": subject.flops / mine / 1e9,
        "torch_gflops": subject.flops / other / 1e9,
        "handheld_gbs": moved / mine / 1e9,
        "torch_gbs": moved / other / 1e9,
        "least_us": best * 1e6,
        "small": small,
        "share": best / mine,
        "share_walked": walked / mine,
        "torch_share": best / other,
        "ratio": mine / other,
        "error": None if math.isnan(subject.error) else subject.error,
        **({"candidates": subject.candidates} if subject.candidates else {}),
    }


HEAD = (
    f"{'':30} {'handheld':>9} {'torch':>9} us {'ratio':>6}   {'handheld':>9} {'torch':>9} "
    f"{'':7} {'share':>6} {'walked':>6} {'error':>6}  choice"
)


def line(result: dict[str, Any]) -> str:
    unit = "gflops" if result["flops"] else "gbs"
    again = f"{result['share_walked']:6.0%}" if result["read_again_bytes"] else f"{'':6}"
    error = "" if result["error"] is None else f"{result['error']:.0e}"
    text = (
        f"  {result['row']:28} {result['handheld_us']:9.1f} {result['torch_us']:9.1f}    "
        f"{result['ratio']:6.2f}   {result['handheld_' + unit]:9.1f} "
        f"{result['torch_' + unit]:9.1f} {'GFLOP/s' if result['flops'] else 'GB/s':7} "
    )
    text += f"{'small':>6} {'':6}" if result["small"] else f"{result['share']:6.0%} {again}"
    text += f" {error:>6}  {result['choice']:6}  {result['why']}"
    for best in result.get("candidates", [])[:3]:
        if "us" in best:
            rate = result["flops"] / best["us"] / 1e3
            text += (
                f"\n{'':30} {best['us']:9.1f} {'':22} {rate:9.1f} {best['error']:.0e} "
                f"{best['why']} {json.dumps(best['choice'])}"
            )
    return text


def mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summary(results: list[dict[str, Any]]) -> None:
    print("\ngeometric means of ratios; of shares, rows that are not small:")
    for family in dict.fromkeys(r["family"] for r in results):
        rows = [r for r in results if r["family"] == family]
        large = [r for r in rows if not r["small"]]
        shares = "all small"
        if large:
            shares = f"share {mean([r['share'] for r in large]):.0%}"
            if any(r["read_again_bytes"] for r in large):
                shares += f", walked {mean([r['share_walked'] for r in large]):.0%}"
        print(f"  {family:20} ratio {mean([r['ratio'] for r in rows]):5.2f} of {len(rows)}, {shares}")
    absent = [r for r in results if r["choice"] == "absent"]
    known = sum(r["choice"] != "—" for r in results)
    print(f"{len(absent)} of {known} shapes with variants are in no tuning record")


def result_rows(results: list[dict[str, Any]], device: str, facts: dict[str, Any]) -> list[Row]:
    """A row per family: geometric means, and the rows they are of among its figures."""
    made: list[Row] = []
    families: dict[str, list[dict[str, Any]]] = {}
    for r in results:  # pointwise ops differ too much for one mean
        op = r["row"].partition(" ")[2]
        families.setdefault(f"pointwise: {op}" if r["family"] == "pointwise" else r["family"], []).append(r)
    for family, rows in families.items():
        large = [r for r in rows if not r["small"]]
        details: dict[str, Value] = {"shapes": len(rows)}
        if any(r["read_again_bytes"] for r in large):
            details["walked %"] = 100 * mean([r["share_walked"] for r in large])
        share = 100 * mean([r["share"] for r in large]) if large else None
        ratio = mean([r["ratio"] for r in rows])
        figures = {"rows": rows, "run": facts}
        made.append(Row(family, device, share, "% of the ceiling", ratio, "PyTorch", details=details, figures=figures))
    return made


def plot(results: list[dict[str, Any]], device: str, path: Path) -> None:
    """Per family, the mean and the range over its rows: the share of the ceiling, and the ratio to PyTorch's time."""
    shown = [r for r in results if not r["small"]]
    families = list(dict.fromkeys(r["family"] for r in shown))
    rows = [[r for r in shown if r["family"] == family] for family in families]

    def ranges(name: str, value: Callable[[dict[str, Any]], float]) -> Series:
        values = [[value(row) for row in one] for one in rows]
        return Series(name, [mean(v) for v in values], low=[min(v) for v in values], high=[max(v) for v in values])

    shares = bars(
        "Share of the measured ceiling",
        families,
        [ranges("Handheld", lambda r: 100 * r["share"]), ranges("PyTorch", lambda r: 100 * r["torch_share"])],
        Axis("share", "%"),
        references=[Reference(100.0, "the ceiling")],
        note="The ceiling is the device's arithmetic, or the same bytes only moved. Means and ranges of the rows.",
    )
    ratios = bars(
        "PyTorch's time divided by Handheld's",
        families,
        [ranges("ratio", lambda r: 1 / r["ratio"])],
        Axis("ratio", log=True),
        references=[Reference(1.0, "equal")],
    )
    charts_page.write(path, "Kernels", device, shares, ratios)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument(
        "--only",
        default="",
        help="families, by the beginning of their names: "
        "matmul, conv, conv_input, batch, layer, softmax, max, optimizer ...",
    )
    parser.add_argument("--match", default="", help="only rows whose name holds this text")
    parser.add_argument("--candidates", action="store_true", help="time every choice")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of rounds, for each row")
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with charts of the shares here")
    return parser.parse_args()


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    caps = find(options.on).caps
    where = "cuda" if torch.cuda.is_available() and "NVIDIA" in caps.vendor else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(caps.compute_units if caps.kind == "cpu" else os.cpu_count() or 1)
    large = caps.kind == "gpu"
    rows = [(r.op, r, contraction) for r in contractions.rows(large)]
    rows += [(r.family, r, stream) for r in streams.rows(large)]  # type: ignore[misc]
    wanted = tuple(options.only.split(","))
    rows = [r for r in rows if r[0].startswith(wanted) and options.match in r[1].name]
    order = list(dict.fromkeys(family for family, _, _ in rows))
    rows.sort(key=lambda r: order.index(r[0]))
    if not rows:
        raise SystemExit(
            "no such rows: families are "
            f"{', '.join(dict.fromkeys(r.family for r in streams.rows(large)))}, "
            "matmul, conv, conv_input, conv_weight"
        )
    device = Device.open(options.on, where)
    best = device.ceilings
    print(f"{caps.name} ({caps.driver}) beside PyTorch {torch.__version__} on {where}")
    print(
        f"ceilings of {best.date}: {best.fp32.median / 1e9:.0f} GFLOP/s, "
        f"{best.bandwidth / 1e9:.1f} GB/s outside caches, "
        f"{best.launch_device_s.median * 1e6:.1f} us a launch{best.disturbed and ', '}"
        f"{best.disturbed}"
    )
    print(tuned.known(caps)[1])
    print(HEAD)
    results: list[dict[str, Any]] = []
    for family, row, prepare in rows:
        if not results or results[-1]["family"] != family:
            print(family)
        subject = prepare(row, device, options)  # type: ignore[arg-type]
        try:
            results.append(compare(subject, device, options))
        finally:
            subject.close()
        print(line(results[-1]), flush=True)
    summary(results)
    if options.json:
        facts = {"device": caps.to_json(), "torch": torch.__version__, "where": where, "ceilings": best.to_json()}
        save(options.json, "Kernels", result_rows(results, device_id(caps.name, caps.driver), facts))
    if options.plot:
        plot(results, caps.name, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
