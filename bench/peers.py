"""Compares whole training steps with PyTorch, JAX, tinygrad and MNN: ratios of step times from one run.

    python bench/peers.py [--on opencl] [--only abc|small|large|suite:paper] [--against eager,compile,jax]
                          [--rounds 15] [--seconds 0.3] [--json FILE] [--plot FILE.html]

Contestants take turns, so that other work on the machine disturbs all of them equally. A turn is as
many steps as fill `--seconds`. Every step takes its batch from host memory, and a turn ends when its
last loss is on the host. A ratio is Handheld's median over the turns divided by the other's: below 1,
Handheld is faster. On an NVIDIA device PyTorch runs on CUDA with TF32 off, otherwise on the CPU. On a
CPU all have as many threads as the device has compute units.

jax, tinygrad and mnn run in their own processes, from PyTorch's weights, on the same batch, with SGD
and momentum 0.9. A peer is timed only if its losses of three steps without dropout equal PyTorch's, the
first to 1e-4. They have the lettered steps only, not those of `--only suite`. tinygrad runs on OpenCL
unless DEV selects another device. `--against all`, the default, takes every peer that is installed.
`absent` counts the nodes whose shape is in no tuning record.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import charts_page
import torch
import tuned
from remote import PEERS, Failed, Remote
from result_file import Row, device_id, save
from translate import NotWritten
from workloads import Entry, captured, chosen, eager

import handheld
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.report.charts import Axis, Reference, Series, bars

NAMES = ("eager", "compile", *PEERS)
#: names in the results
LABELS = {"eager": "PyTorch", "compile": "torch.compile", "jax": "JAX", "tinygrad": "tinygrad", "mnn": "MNN"}
PAUSE = 0.03  # seconds; threads that spin for more work stop meanwhile

Turn = Callable[[int], float]  # steps -> seconds


def timed(steps: Callable[[int], None]) -> Turn:
    def turn(count: int) -> float:
        started = time.perf_counter()
        steps(count)
        return time.perf_counter() - started

    return turn


def ours(entry: Entry, device: str) -> tuple[Turn, dict[str, Any]]:
    started = time.perf_counter()
    step, runs = captured(entry)
    plan = step.plan(device, graphs=[name for name, _ in runs])
    trainer = plan.start()
    batches = [(name, [t.numpy() for t in batch]) for name, batch in runs]
    launches = sum(len(n.launches) for g in plan.graphs.values() for n in g.lowered)

    def steps(count: int) -> None:
        for _ in range(count):
            for name, batch in batches:
                loss = trainer.run(name, *batch)
        float(loss)

    steps(1)
    first = time.perf_counter() - started
    return timed(steps), {
        "launches": launches,
        "first_step_s": first,
        "plan_bytes": plan.bytes,
        **tuned.coverage(plan, tuned.known(plan.caps)[0]),
    }


def pytorch(entry: Entry, where: str, compiled: bool) -> Turn:
    run = eager(entry, where, compiled)

    def steps(count: int) -> None:
        for _ in range(count):
            loss = run.step()
        float(loss.detach())

    steps(1)
    return timed(steps)


def compare(entry: Entry, options: argparse.Namespace, where: str, kind: str) -> dict[str, Any]:
    turn, facts = ours(entry, options.on)
    result: dict[str, Any] = {"workload": entry.name, **facts}
    contestants, remotes = {"handheld": turn}, []
    try:
        for name in options.against:
            try:
                if name in PEERS:
                    threads = torch.get_num_threads()
                    remotes.append(Remote(name, entry, threads, kind, options.patience))
                    contestants[name] = remotes[-1].turn
                    result[f"{name}_is"] = remotes[-1].what
                else:
                    contestants[name] = pytorch(entry, where, name == "compile")
            except NotWritten as error:
                result[f"{name}_not_written"] = str(error)
            except Failed as error:
                result[f"{name}_error"] = str(error)
            except Exception as error:
                if name != "compile":
                    raise
                result["compile_error"] = f"{type(error).__name__}: {str(error)[:300]}"
        times = rounds(contestants, options, result)
    finally:
        for remote in remotes:
            remote.close()
    for name, turns in times.items():
        quarter = statistics.quantiles(turns, n=4) if len(turns) > 1 else [turns[0]] * 3
        result[f"{name}_ms"] = 1e3 * statistics.median(turns)
        result[f"{name}_spread"] = (quarter[2] - quarter[0]) / statistics.median(turns)
        if name != "handheld":
            result[f"ratio_{name}"] = result["handheld_ms"] / result[f"{name}_ms"]
    return result


def rounds(contestants: dict[str, Turn], options: argparse.Namespace, result: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds per step of each contestant, one entry per turn. After three turns, a contestant that has used
    `--most` seconds gets no more."""
    counts: dict[str, int] = {}
    times: dict[str, list[float]] = {}

    def take(name: str, steps: int) -> float | None:
        time.sleep(PAUSE)
        try:
            return contestants[name](steps)
        except Failed as error:  # The peer's process crashed or hangs.
            result[f"{name}_error"] = str(error)
            times.pop(name, None)
            counts.pop(name, None)
            return None

    for name in contestants:
        if take(name, 2) is not None and (once := take(name, 1)) is not None:
            counts[name], times[name] = max(1, round(options.seconds / once)), []
    for _ in range(options.rounds):
        for name in list(times):
            spent = sum(times[name]) * counts[name]
            if spent > options.most and len(times[name]) >= 3:
                continue
            seconds = take(name, counts[name])
            if seconds is not None:
                times[name].append(seconds / counts[name])
    return times


def cells(row: dict[str, Any], against: list[str]) -> str:
    text = f"{row['workload']:20} {row['launches']:8} {row['absent']:7}"
    text += f"{row['handheld_ms']:10.2f} ({row['handheld_spread']:4.0%})"
    for name in against:
        if f"ratio_{name}" in row:
            text += f"{row[name + '_ms']:11.2f} ({row[name + '_spread']:4.0%})"
            text += f"{row['ratio_' + name]:6.2f}"
        else:
            text += f"{'error' if f'{name}_error' in row else '—':>24}"
    return text


def plot(rows: list[dict[str, Any]], against: list[str], device: str, path: Path) -> None:
    """A chart of the speed-up over each peer on a logarithmic axis: 2 means twice as fast."""
    series = [
        Series(name, [1 / row[f"ratio_{name}"] if f"ratio_{name}" in row else None for row in rows]) for name in against
    ]
    title = "Training steps: their time divided by Handheld's"
    names = [row["workload"] for row in rows]
    equal = [Reference(1.0, "equal")]
    charts_page.write(path, title, device, bars(title, names, series, Axis("ratio", log=True), references=equal))


def against(text: str) -> list[str]:
    """The argument of --against as names; "all" means every installed peer."""
    names = [n for n in NAMES if n not in PEERS or PEERS[n].installed] if text == "all" else text.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"there is no peer {name!r}. Try: {', '.join(NAMES)}")
        if name in PEERS and not PEERS[name].installed:
            raise argparse.ArgumentTypeError(f"{name} is not installed. Try: pip install {PEERS[name].package}")
    return names


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--only", default="small", help="letters, small, large, suite[:SIZE[:NAMES]]")
    parser.add_argument(
        "--against", default="all", type=against, help=f"all (every installed one), or some of {','.join(NAMES)}"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds per turn")
    parser.add_argument(
        "--most",
        type=float,
        default=20,
        help="seconds after which a slow contestant gets no more turns, once it has had three",
    )
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds that a peer may take to start, compilation included"
    )
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--plot", type=charts_page.html_path, help="write a page with a bar chart here")
    return parser.parse_args()


def summary(rows: list[dict[str, Any]], names: list[str]) -> None:
    for name in names:
        compared = [row for row in rows if f"ratio_{name}" in row]
        if compared:
            mean = math.exp(sum(math.log(r[f"ratio_{name}"]) for r in compared) / len(compared))
            worst = max(compared, key=lambda row: float(row[f"ratio_{name}"]))
            print(
                f"handheld / {name}: geometric mean {mean:.2f} of {len(compared)}, worst "
                f"{worst[f'ratio_{name}']:.2f} ({worst['workload']})"
            )
    gaps = {row[key] for row in rows for key in row if key.endswith("_not_written")}
    if gaps:
        print(f"—: not written for that peer ({', '.join(sorted(gaps))})")
    for row in rows:
        for name in names:
            if f"{name}_error" in row:
                print(f"error: {row['workload']}, {name}: {row[f'{name}_error']}")


def result_rows(rows: list[dict[str, Any]], names: list[str], device: str, facts: dict[str, Any]) -> list[Row]:
    """One row per step and peer, and one per peer with the geometric mean."""
    results: list[Row] = []
    for name in names:
        compared = [row for row in rows if f"ratio_{name}" in row]
        for row in compared:
            own = ("launches", "absent", f"{name}_ms")
            details = dict(zip(("launches", "untuned", "peer ms"), (row[key] for key in own), strict=True))
            figures = {key: value for key, value in row.items() if key not in own} | {"run": facts}
            what, ratio = row["workload"], row[f"ratio_{name}"]
            results.append(
                Row(what, device, row["handheld_ms"], "ms", ratio, LABELS[name], details=details, figures=figures)
            )
        if len(compared) > 1:
            letters = "".join(row["workload"][0] for row in compared)
            mean = math.exp(statistics.fmean(math.log(row[f"ratio_{name}"]) for row in compared))
            results.append(Row(f"geometric mean of {letters}", device, None, "ms", mean, LABELS[name]))
    return results


def facts_of(caps: DeviceCaps, where: str) -> dict[str, Any]:
    """Prints what is compared, and returns it."""
    print(f"handheld {handheld.__version__} on {caps.name} ({caps.driver})")
    print(
        f"PyTorch {torch.__version__} on {where}, {torch.get_num_threads()} threads; ms per step, "
        "median (quartile range / median)"
    )
    for name, peer in PEERS.items():
        if not peer.installed:
            print(f"{name}: not installed")
    line = tuned.known(caps)[1]
    print(line)
    return {
        "device": caps.to_json(),
        "torch": torch.__version__,
        "where": where,
        "threads": torch.get_num_threads(),
        "tuning": line,
    }


def main() -> int:
    options = options_of()
    warnings.simplefilter("ignore")
    caps = describe(options.on)
    where = "cuda" if torch.cuda.is_available() and "NVIDIA" in caps.vendor else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(caps.compute_units if caps.kind == "cpu" else os.cpu_count() or 1)
    facts = facts_of(caps, where)
    heads = "".join(f"{name:>18} {'ratio':>5}" for name in options.against)
    print(f"{'':20} {'launches':>8} {'absent':>7}{'handheld':>17}{heads}")
    rows = []
    for entry in chosen(options.only):
        row = compare(entry, options, where, caps.kind)
        rows.append(row)
        print(cells(row, options.against), flush=True)
    summary(rows, options.against)
    if options.json:
        device = device_id(caps.name, caps.driver)
        save(options.json, "Whole steps", result_rows(rows, options.against, device, facts))
    if options.plot:
        plot(rows, options.against, caps.name, options.plot)
    return int(any(key.endswith("_error") for row in rows for key in row))


if __name__ == "__main__":
    sys.exit(main())
