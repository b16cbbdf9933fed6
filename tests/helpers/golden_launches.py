"""The launches of kernel families with variants, for fixed nodes and devices, as hashes.

A hash covers the choices that a family offers and its default choice, and for each lowered choice the program text
without comments and formatting, the kinds and values of the arguments, sizes and workspaces. The nodes are written
as in a step file, whose format does not change with the code.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handheld.device import DeviceCaps
from handheld.graph.check import check
from handheld.graph.codec import from_json
from handheld.graph.graph import Graph
from handheld.kernels.base import Float, Int, Launch, Lowered
from handheld.kernels.versions import VERSIONS
from handheld.plan.lowering import candidates, family, lower
from handheld.plan.signature import signature

PATH = Path(__file__).parents[1] / "plan" / "golden_launches.json"

#: family -> kind of device -> {"version": number, "launches": {device and signature: hash}}
Golden = dict[str, dict[str, dict[str, Any]]]

#: which of the offered choices are lowered; all of them would take some seconds per node
EVERY = 5

#: an epilogue of a product [.., m, n]: it adds a bias per row, its third input, and applies ReLU
BIAS = [
    ["acc", "f32", [], []],
    ["load", "f32", [], [2, [], 0.0]],
    ["add", "f32", [0, 1], []],
    ["const", "f32", [], [0.0]],
    ["max", "f32", [2, 3], []],
]
PLAIN = {"scale": 0.25, "causal": False, "masked": False, "dropout": 0.0, "key": 7}

_BASE: dict[str, Any] = {
    "name": "golden",
    "vendor": "golden",
    "driver": "0",
    "compute_units": 4,
    "max_work_group": 256,
    "local_mem_bytes": 32 << 10,
    "global_mem_bytes": 1 << 32,
    "max_alloc_bytes": 1 << 30,
    "base_align_bytes": 128,
    "unified_memory": True,
}
DEVICES = {
    "narrow": DeviceCaps(**_BASE, kind="cpu", vector_width=4),
    "avx2": DeviceCaps(**_BASE, kind="cpu", vector_width=8, features="avx2,fma,f16c"),
    "avx512": DeviceCaps(**_BASE, kind="cpu", vector_width=16, features="avx2,fma,f16c,avx512f"),
    "desktop": DeviceCaps(**(_BASE | {"compute_units": 48, "max_work_group": 1024}), kind="gpu", vector_width=1),
    "phone": DeviceCaps(**(_BASE | {"vendor": "QUALCOMM"}), kind="gpu", images=True, fp16=True),
    "units": DeviceCaps(**(_BASE | {"max_work_group": 1024, "local_mem_bytes": 48 << 10}), kind="gpu", features="tf32"),
    "least": DeviceCaps(**(_BASE | {"max_work_group": 64, "local_mem_bytes": 16 << 10}), kind="gpu"),
}


def _graph(op: str, inputs: list[Any], outputs: list[list[int]], attrs: dict[str, Any], half: bool = False) -> Graph:
    """A graph of one node. An input is a shape, or a pair of shape and strides. `half` stores all tensors in f16."""
    views, tensors = [], []
    for i, given in enumerate(inputs):
        shape, strides = given if given and isinstance(given[0], list) else (given, _dense(given))
        size = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        # Only the step and the seed of random numbers are scalars.
        dtype = "i32" if not shape else "f16" if half else "f32"
        flat = shape if strides == _dense(shape) else [size]
        tensors.append([i, flat, dtype, "input", f"x{i}"])
        views.append([i, shape, strides, 0])
    ids = list(range(len(inputs), len(inputs) + len(outputs)))
    tensors += [[i, shape, "f16" if half else "f32", "activation", ""] for i, shape in zip(ids, outputs, strict=True)]
    made = [[f"y{i}", [i, shape, _dense(shape), 0], "float32"] for i, shape in zip(ids, outputs, strict=True)]
    node = {"op": op, "inputs": views, "outputs": ids, "attrs": attrs, "origin": ["forward", "golden", op]}
    data = {
        "name": "golden",
        "tensors": tensors,
        "nodes": [node],
        "inputs": [[f"x{i}", i, "int64" if tensors[i][2] == "i32" else "float32"] for i in range(len(inputs))],
        "slots": [],
        "writes": [],
        "outputs": made,
        "notes": {},
        "packs": [],
    }
    return check(from_json(data))


def _dense(shape: list[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _product(m: int, k: int, n: int, batch: list[int], epilogue: bool = False, turned: bool = False) -> Graph:
    shape = [*batch, m, n]
    a: list[Any] = [*batch, m, k]
    if turned:
        a = [a, [*_dense(a)[:-2], 1, m]]
    bias = [[shape, [0] * len(batch) + [0, 1]]] if epilogue else []
    program = BIAS if epilogue else BIAS[:1]
    attrs = {"shape": shape, "program": program, "stores": [len(program) - 1]}
    return _graph("matmul", [a, [*batch, k, n], *bias], [shape], attrs)


def _convolutions(
    x: list[int], w: list[int], stride: int = 1, padding: int = 0, groups: int = 1, half: bool = False
) -> Iterator[Graph]:
    """A convolution and its two gradients."""
    y = [x[0], w[0], *((n + 2 * padding - r) // stride + 1 for n, r in zip(x[2:], w[2:], strict=True))]
    around = {"stride": [stride] * 2, "padding": [padding] * 2, "dilation": [1, 1], "groups": groups}
    one = {"program": BIAS[:1], "stores": [0]}
    yield _graph("conv", [x, w], [y], {**around, "shape": y, **one}, half)
    yield _graph("conv_input", [y, w], [x], {**around, "shape": x, **one}, half)
    yield _graph("conv_weight", [y, x], [w], {**around, "shape": w}, half)


def _attention(rows: int, columns: int, half: bool = False, **change: Any) -> Iterator[Graph]:
    """Attention in which four query heads share two key heads, and its gradient."""
    q, kv, lse = [2, 4, rows, columns], [2, 2, rows, columns], [2, 4, rows]
    attrs = PLAIN | change
    more: list[Any] = [[2, 4, rows, rows]] if attrs["masked"] else []
    more += [[], []] if attrs["dropout"] else []
    out = [2, rows, 4, columns]
    yield _graph("attention", [q, kv, kv, *more], [out, lse], attrs, half)
    back = [out, [2, rows, 2, columns], [2, rows, 2, columns]]
    yield _graph("attention_grad", [q, q, kv, kv, q, lse, *more], back, attrs, half)


def graphs() -> Iterator[Graph]:
    """The sample of nodes: awkward and even sizes, strides, halves, an epilogue, taps, groups."""
    yield _product(33, 20, 17, [])
    yield _product(64, 2048, 64, [])
    yield _product(128, 64, 96, [], epilogue=True)
    yield _product(48, 64, 32, [2, 3], turned=True)
    yield from _convolutions([2, 3, 16, 16], [8, 3, 3, 3], padding=1)
    yield from _convolutions([4, 32, 8, 8], [64, 32, 1, 1])
    yield from _convolutions([2, 16, 15, 15], [16, 8, 5, 5], stride=2, padding=2, groups=2)
    yield from _convolutions([2, 16, 14, 14], [32, 16, 3, 3], padding=1, half=True)
    yield from _convolutions([2, 24, 14, 14], [24, 1, 3, 3], padding=1, groups=24)
    yield from _attention(33, 20)
    yield from _attention(64, 64, causal=True)
    yield from _attention(16, 32, masked=True, dropout=0.5)


def plain(source: str) -> str:
    """A program without comments, blank lines and indentation, and with single spaces."""
    source = re.sub(r"/\*.*?\*/|//[^\n]*", " ", source, flags=re.DOTALL)
    lines = (" ".join(line.split()) for line in source.splitlines())
    return "\n".join(line for line in lines if line)


def _launch(launch: Launch) -> list[Any]:
    args = [[type(arg).__name__.lower(), arg.value if isinstance(arg, Int | Float) else None] for arg in launch.args]
    return [launch.kernel, plain(launch.text), args, list(launch.global_size), list(launch.local_size)]


def _lowered(low: Lowered) -> list[Any]:
    return [[_launch(launch) for launch in low.launches], list(low.workspace)]


def digest(graph: Graph, caps: DeviceCaps) -> str:
    """The hash of one node on one device: the offered choices, and the launches of the default and of some choices."""
    (node,) = graph.nodes
    offered = candidates(node, graph, caps)
    rows: list[Any] = [[dict(choice) for choice in offered]]
    rows += [_lowered(lower(node, graph, caps, choice)) for choice in (None, *offered[::EVERY])]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def generate() -> Golden:
    """The content of the golden file for the current code."""
    golden: Golden = {
        name: {kind: {"version": number, "launches": {}} for kind, number in kinds.items()}
        for name, kinds in VERSIONS.items()
    }
    for graph in graphs():
        (node,) = graph.nodes
        name = family(node.op)
        for device, caps in DEVICES.items():
            key = f"{device}: {signature(node, graph)}"
            golden[name][caps.kind]["launches"][key] = digest(graph, caps)
    return golden


def changed(old: Golden, new: Golden) -> list[tuple[str, str, list[str]]]:
    """Family, kind of device and nodes whose launches changed although the version did not."""
    rows = []
    for name, kinds in new.items():
        for kind, now in kinds.items():
            was = old.get(name, {}).get(kind, {"version": 0, "launches": {}})
            nodes = sorted(dict(was["launches"].items() ^ now["launches"].items()))
            if nodes and was["version"] == now["version"]:
                rows.append((name, kind, nodes))
    return rows
