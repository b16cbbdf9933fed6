"""Runs single nodes on an OpenCL device, with each tensor in its own buffer."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pyopencl as cl

from handheld.backends.base import describe
from handheld.backends.opencl.bind import OwnBuffers, bind
from handheld.backends.opencl.programs import build
from handheld.backends.opencl.submit import Bound, Enqueuer, Work
from handheld.backends.opencl.unknown_cpu import name_processor
from handheld.device import DeviceCaps
from handheld.graph.dtypes import BOOL, DTYPES
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node, Origin, Tensor, View, contiguous_strides
from handheld.kernels.base import Lower
from handheld.plan.widen import texts_of
from helpers.matrix_units import emulated


def host_type(dtype: str) -> type[np.generic]:
    """The NumPy type of a tensor's buffer. It is uint8 for bool, so that a byte other than 0 and 1 is noticed."""
    return np.uint8 if dtype == BOOL else DTYPES[dtype].numpy


#: Intel's runtime forgets a context that only a queue refers to.
_contexts: list[cl.Context] = []


@cache
def queue() -> cl.CommandQueue:
    wanted = os.environ.get("HANDHELD_TEST_PLATFORM", "")
    for platform in cl.get_platforms():
        if wanted.lower() in platform.name.lower():
            for device in platform.get_devices():
                name_processor(device)
                _contexts.append(cl.Context([device]))
                return cl.CommandQueue(_contexts[-1])
    raise RuntimeError(f"no OpenCL platform like {wanted!r}")


def caps_of_kind(kind: str = "cpu", **change: object) -> DeviceCaps:
    """A description of a small device. Kind `gpu` selects the local-memory variants, which any device can run."""
    values = {
        "name": "test",
        "vendor": "test",
        "kind": kind,
        "driver": "0",
        "compute_units": 2,
        "max_work_group": 128,
        "local_mem_bytes": 32 << 10,
        "global_mem_bytes": 1 << 30,
        "max_alloc_bytes": 1 << 28,
        "base_align_bytes": 128,
        "unified_memory": True,
        # Kernels for CPUs are tested with the compiler features that are used here.
        "features": describe("opencl").features if kind == "cpu" else "",
    }
    return DeviceCaps(**(values | change))  # type: ignore[arg-type]


def view(tensor: Tensor, shape=None, strides=None, offset: int = 0) -> View:
    shape = tensor.shape if shape is None else tuple(shape)
    return View(tensor.id, shape, contiguous_strides(shape) if strides is None else tuple(strides), offset)


def make(op: str, arrays: list[np.ndarray], views, outputs, attrs) -> tuple[Graph, dict[int, np.ndarray]]:
    """A graph of one node. `arrays` are the input buffers; `views` has one callable per input, or None for a
    dense input; `outputs` is [(shape, dtype)]."""
    tensors, data, inputs = {}, {}, []
    for i, array in enumerate(arrays):
        dtype = {"f": "f32", "i": "i32", "b": "bool"}[array.dtype.kind]
        dtype = "f16" if array.dtype == np.float16 else dtype
        tensors[i] = Tensor(i, array.shape, dtype, "input")
        data[i] = np.ascontiguousarray(array.astype(host_type(dtype)))
        inputs.append(view(tensors[i]) if views is None or views[i] is None else views[i](tensors[i]))
    outs = []
    for shape, dtype in outputs:
        i = len(tensors)
        tensors[i] = Tensor(i, tuple(shape), dtype, "activation")
        outs.append(i)
    node = Node(op, tuple(inputs), tuple(outs), attrs, Origin("forward", "test", op))
    graph = Graph(
        "test",
        tensors,
        (node,),
        tuple(GraphInput(f"x{i}", i, "float32") for i in range(len(arrays))),
        {},
        (),
        tuple(GraphOutput(f"y{i}", view(tensors[i]), "float32") for i in outs),
    )
    return graph, data


def run_node(
    lower: Lower,
    graph: Graph,
    data: dict[int, np.ndarray],
    caps: DeviceCaps,
    in_place: dict[int, int] | None = None,
    optimised: bool = False,
) -> list[np.ndarray]:
    """Runs the graph's only node and returns its outputs. Outputs and workspace start as NaN, so that missing
    writes are noticed, except for outputs that are `in_place` of an input. `optimised`: see `program`."""
    node, q = graph.nodes[0], queue()
    lowered = lower(node, graph, caps)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    host = dict(data)
    for i in node.outputs:
        tensor = graph.tensors[i]
        host[i] = np.full(tensor.shape, np.nan if DTYPES[tensor.dtype].is_float else 77, host_type(tensor.dtype))
    buffers = {i: cl.Buffer(q.context, flags, hostbuf=a) for i, a in host.items() if a.size}
    buffers.update({out: buffers[i] for out, i in (in_place or {}).items()})
    scratch = [
        cl.Buffer(q.context, flags, hostbuf=np.full(max(n, 4) // 4 + 1, np.nan, np.float32)) for n in lowered.workspace
    ]
    empty = cl.Buffer(q.context, cl.mem_flags.READ_WRITE, 4)
    places = OwnBuffers(q.context, graph, {i: buffers.get(i, empty) for i in graph.tensors}, scratch)
    texts, bound = texts_of(lowered.launches, caps), []
    for launch in lowered.launches:
        kernel = cl.Kernel(program(emulated(texts[launch.text]), caps, optimised), launch.kernel)
        bind(kernel, launch, places)
        bound.append(Bound(0, kernel, launch.global_size, launch.local_size))
    Enqueuer().submit(q, Work(None, tuple(bound)), None)
    results = []
    for i in node.outputs:
        out = host[i].copy()
        if out.size:
            cl.enqueue_copy(q, out, buffers[i])
        results.append(out)
    q.finish()
    return results


def program(text: str, caps: DeviceCaps, optimised: bool) -> cl.Program:
    """A built program. What a GPU would run is built without optimisation on a CPU, unless it must be `optimised`: no
    CPU runs it but in tests, and it takes a third of the time."""
    q = queue()
    if caps.kind == "gpu" and not optimised and q.device.type & cl.device_type.CPU:
        return cl.Program(q.context, text).build(["-w", "-cl-opt-disable"])
    return build(q.context, text)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The norm of the difference relative to the norm of the expected values, in float64."""
    got, want = got.astype(np.float64), want.astype(np.float64).reshape(got.shape)
    scale = float(np.linalg.norm(want)) or 1.0
    return float(np.linalg.norm(got - want)) / scale
