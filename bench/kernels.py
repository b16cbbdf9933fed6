"""Compares single kernels with PyTorch's ops in one run: rates, shares of the ceiling, ratios.

    python bench/kernels.py [--on opencl] [--only matmul,conv,batch] [--match TEXT] [--candidates]
                            [--rounds 7] [--seconds 0.3] [--json FILE] [--plot FILE.html]

The shapes are those of the suite's layers, square products and, on a GPU, some that fit in no cache.
Handheld's time is that of a row's launches by OpenCL events. PyTorch's is by CUDA events on an NVIDIA
device (TF32 off), by the host's clock on a CPU. The two take turns with a pause between them, because
threads that spin for more work would disturb the next turn. A ratio is Handheld's median divided by
PyTorch's: below 1, Handheld is faster. `error` is the distance to PyTorch's result.

    share    the least possible time divided by Handheld's. The least time is that of a kernel that only
             reads and writes as many bytes (bare.py; it takes turns with the other two). For a
             contraction it is the time of its arithmetic at the rate that `handheld doctor --ceilings`
             measured, where that is longer. Each tensor counts once
    walked   the same, and what a reduction must read again counts too: a batch norm reads its input
             for the mean, for the variance and to apply them
    small    outside caches the bytes would take less time than empty launches, so the share means nothing
    choice   tuned or best (a record has the shape), absent (no record has it), — (one variant)

With --candidates every choice of a contraction is timed; the best are shown below the chosen one.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from typing import Any

import charts_page
import contractions
import streams
import torch
import tuned
from bare import Bare
from kernel_subjects import Device, Subject, by_events, contraction, medians, stream
from kernel_table import HEAD, line, plot, result_rows, summary
from result_file import device_id, save

from handheld.backends.opencl.devices import find


def compare(subject: Subject, device: Device, options: argparse.Namespace) -> dict[str, Any]:
    bare = Bare(device.queue, device.caps, subject.read, subject.written, subject.in_place)
    ours, theirs, best = medians([subject.ours, subject.theirs, by_events(device.queue, bare.launches)], options)
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
        "handheld_us": ours * 1e6,
        "torch_us": theirs * 1e6,
        "handheld_gflops": subject.flops / ours / 1e9,
        "torch_gflops": subject.flops / theirs / 1e9,
        "handheld_gbs": moved / ours / 1e9,
        "torch_gbs": moved / theirs / 1e9,
        "least_us": best * 1e6,
        "small": small,
        "share": best / ours,
        "share_walked": walked / ours,
        "torch_share": best / theirs,
        "ratio": ours / theirs,
        "error": None if math.isnan(subject.error) else subject.error,
        **({"candidates": subject.candidates} if subject.candidates else {}),
    }


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="opencl")
    parser.add_argument(
        "--only",
        default="",
        help="families, by the beginning of their names: "
        "matmul, conv, conv_input, batch, layer, softmax, max, optimizer ...",
    )
    parser.add_argument("--match", default="", help="only rows whose name contains this text")
    parser.add_argument("--candidates", action="store_true", help="time every choice of a contraction")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of rounds per row")
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
            "no row matches. Families are: "
            f"{', '.join(dict.fromkeys(r.family for r in streams.rows(large)))}, "
            "matmul, conv, conv_input, conv_weight"
        )
    device = Device.open(options.on, where)
    best = device.ceilings
    print(f"{caps.name} ({caps.driver}) and PyTorch {torch.__version__} on {where}")
    print(
        f"ceilings of {best.date}: {best.fp32.median / 1e9:.0f} GFLOP/s, "
        f"{best.bandwidth / 1e9:.1f} GB/s outside caches, "
        f"{best.launch_device_s.median * 1e6:.1f} us per launch{best.disturbed and ', '}"
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
