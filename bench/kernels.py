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
