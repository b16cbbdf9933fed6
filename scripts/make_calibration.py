"""Chooses the ops of src/handheld/profile/calibration.json, which `handheld doctor --energy` measures.

    python scripts/make_calibration.py

Captures models of the suite, takes each distinct op as a graph of its own, and chooses ops that are far apart in their
arithmetic and their bytes. Five models are left out, so that they can test the energy model (bench/energy_model.py).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from handheld.graph.codec import to_json
from handheld.graph.graph import Graph
from handheld.measure.jobs import alone
from handheld.plan.signature import signature
from handheld.plan.work import flops, nbytes
from handheld.resolve import open_model

OUT = Path(__file__).resolve().parent.parent / "src" / "handheld" / "profile" / "calibration.json"
#: Left out, and used by the test: resnet50, mobilenet_v2, vit_tiny, lstm_lm, unet.
MODELS = {
    "paper": {
        "resnet18": 16,
        "bert_base": 4,
        "xception": 8,
        "densenet100": 4,
        "efficientnet_b0": 16,
        "gpt": 4,
        "nmt": 16,
        "char_cnn": 16,
        "squeezenet": 16,
        "ds_cnn": 32,
        "alexnet": 16,
        "inception_v1": 8,
        "mobilenet_v3_small": 16,
        "transformer": 8,
    },
    "small": {"lenet5": 32, "ds_cnn": 8, "transformer": 4, "resnet18": 8},
}
#: How many ops of a kind are taken; depthwise convolutions count as kinds of their own.
COUNTS = {
    "matmul": 14,
    "conv": 9,
    "conv_input": 8,
    "conv_weight": 9,
    "depthwise conv": 4,
    "depthwise conv_input": 4,
    "depthwise conv_weight": 4,
    "map": 10,
    "reduce": 12,
    "attention": 3,
    "attention_grad": 4,
}
OTHERS = 1  # of any other kind
MOST_BYTES, MOST_FLOPS = 400 << 20, 2e11
LEAST_BYTES, LEAST_FLOPS = 5e5, 1e7  # Ops with less work than this are alike.


def main() -> None:
    pool: dict[str, tuple[str, Graph, int, int]] = {}
    for size, models in MODELS.items():
        for name, batch in models.items():
            step = open_model(name, size).step([batch], 0)
            for graph in step.graphs.values():
                for node in graph.nodes:
                    work, moved = flops(node, graph), nbytes(node, graph)
                    if moved <= MOST_BYTES and work <= MOST_FLOPS and moved:
                        groups = node.attrs.get("groups", 1)
                        kind = f"depthwise {node.op}" if groups > 1 else node.op
                        pool.setdefault(signature(node, graph), (kind, alone(node, graph), work, moved))
            print(name, size, len(pool), flush=True)
    ops = []
    for kind in sorted({entry[0] for entry in pool.values()}):
        rows = [entry for entry in pool.values() if entry[0] == kind]
        ops += [to_json(graph) for _, graph, _, _ in spread(rows, COUNTS.get(kind, OTHERS))]
    OUT.write_text(json.dumps({"handheld": "calibration", "version": 1, "ops": ops}, separators=(",", ":")) + "\n")
    print(len(ops), "ops,", OUT.stat().st_size, "bytes")


def spread(rows: list[tuple[str, Graph, int, int]], count: int) -> list[tuple[str, Graph, int, int]]:
    """The row with the most work, and then always the row that is farthest from those taken."""
    at = [
        (
            math.log2(work + LEAST_FLOPS),
            math.log2(moved + LEAST_BYTES),
            math.log2(sum(graph.tensors[out].size for out in graph.nodes[0].outputs) + LEAST_BYTES / 8),
        )
        for _, graph, work, moved in rows
    ]
    taken = [max(range(len(rows)), key=lambda i: sum(at[i]))]
    while len(taken) < min(count, len(rows)):
        taken.append(max(range(len(rows)), key=lambda i: min(math.dist(at[i], at[j]) for j in taken)))
    return [rows[i] for i in sorted(taken)]


if __name__ == "__main__":
    main()
