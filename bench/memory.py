"""Device bytes of a planned step beside PyTorch's own peak for the same step.

    python bench/memory.py [--on opencl] [--only lenet5,resnet18] [--json FILE]

PyTorch's peak is what its allocator had in use at most (CUDA's counter where there is one, else
the profiler's record of every allocation on the CPU), parameters and optimizer state included.
Ours is what the plan allocates: it never allocates anything else.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import torch

import handheld
from handheld import suite
from handheld.device import DeviceCaps
from handheld.suite import dcgan

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "mlp": (64, {}),
    "lenet5": (64, {}),
    "mobilenet_v2": (32, {}),
    "resnet18": (32, {}),
    "squeezenet": (16, {"size": 224}),
    "lstm_lm": (32, {"length": 64}),
    "transformer": (16, {}),
    "dcgan": (16, {}),
}


def held(tensors: list[torch.Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


def pytorch_peak(models: list[Any], losses: list[Any], optimizers: list[Any]) -> int:
    """Most bytes in use during a step, once optimizer state exists."""

    def step() -> None:
        for loss, optimizer in zip(losses, optimizers):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())
    for optimizer in optimizers:
        optimizer.zero_grad()
    state = [t for m in models for t in (*m.parameters(), *m.buffers())]
    state += [
        t for o in optimizers for s in o.state.values() for t in s.values() if torch.is_tensor(t)
    ]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as run:
        step()
    events = [e for e in run.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return held(state) + peak


def measure(name: str, device: str) -> dict[str, Any]:
    batch, options = MODELS[name]
    workload = suite.get(name, **options)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    data = tuple(t.to(where) for t in workload.batch(batch))
    if name == "dcgan":
        capture = dcgan.record(batch, 0, **options)
        step, graphs = capture.step(), ["d", "g"]
        make, judge = (capture.modules[k].to(where) for k in ("generator", "discriminator"))
        models = [make, judge]
        losses = [
            lambda: dcgan.loss_d(make, judge, *data),
            lambda: dcgan.loss_g(make, judge, data[1]),
        ]
        optimizers = [dcgan.adam(judge), dcgan.adam(make)]
    else:
        step, graphs = workload.step(batch), ["train"]
        model, loss, optimizer = workload.make()
        model.to(where)
        models, losses, optimizers = [model], [lambda: loss(model(data[0]), data[1])], [optimizer]
    caps = None if device == "opencl" else DeviceCaps.shipped(device)
    plan = step.plan("opencl", caps=caps, graphs=graphs)
    theirs = pytorch_peak(models, losses, optimizers)
    return {
        "model": name,
        "batch": batch,
        "tensors": max(plan.graphs[g].tensor_bytes for g in graphs),
        "arena": plan.arena_bytes,
        "plan": plan.bytes,
        "pytorch": theirs,
        "ratio": plan.bytes / theirs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--on", default="opencl", help="opencl, or a shipped description: adreno-740"
    )
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"handheld {handheld.__version__}, PyTorch {torch.__version__}; MiB")
    print(
        f"{'model':14} {'batch':>5} {'all tensors':>12} {'arena':>8} {'plan':>8} "
        f"{'PyTorch':>8} {'ratio':>6}"
    )
    rows = []
    for name in options.only.split(","):
        row = measure(name, options.on)
        rows.append(row)
        sizes = "".join(
            f"{row[k] / 2**20:{w}.1f} "
            for k, w in (("tensors", 12), ("arena", 8), ("plan", 8), ("pytorch", 8))
        )
        print(f"{name:14} {row['batch']:5} {sizes}{row['ratio']:6.2f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
