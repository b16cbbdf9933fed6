"""Runs matrix products and convolutions on a device and compares them with torch in float64."""

from __future__ import annotations

import numpy as np
import torch

from handheld.device import DeviceCaps
from handheld.graph.check import check as check_graph
from handheld.graph.program import Instr, Store
from handheld.kernels import contract
from helpers.harness import caps_of_kind, error, make, run_node, view

#: `small` is a GPU with small work-groups, whose tiles compile in half the time
KINDS = ("cpu", "small")
ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),)}


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def device(kind: str, **change) -> DeviceCaps:
    if kind == "small":
        return caps_of_kind("gpu", **{"max_work_group": 64, **change})
    return caps_of_kind(kind, **change)


def close(got: np.ndarray, want: torch.Tensor, limit: float = 1e-5) -> None:
    assert not np.isnan(got).any()
    assert error(got, want.numpy()) < limit


# ------------------------------------------------------------------------------------- matmul


def seen(array: np.ndarray, look) -> torch.Tensor:
    """`look` applied to a float64 tensor."""
    tensor = torch.from_numpy(array.astype(np.float64))
    return look(tensor)


def as_view(look):
    """The `View` that corresponds to `look` on a dense tensor, from torch's strides."""

    def make_view(tensor):
        t = look(torch.empty(tensor.shape))
        return view(tensor, t.shape, t.stride(), t.storage_offset())

    return make_view


def chosen(lower, choice):
    return lambda node, graph, caps: lower(node, graph, caps, choice)


def run_matmul(a, b, kind, look_a=None, look_b=None, limit=1e-5, choice=None, **caps):
    look_a, look_b = look_a or (lambda t: t), look_b or (lambda t: t)
    want = seen(a, look_a) @ seen(b, look_b)
    graph, data = make(
        "matmul", [a, b], [as_view(look_a), as_view(look_b)], [(want.shape, "f32")], {"shape": tuple(want.shape), **ACC}
    )
    check_graph(graph)
    (got,) = run_node(chosen(contract.lower_matmul, choice), graph, data, device(kind, **caps))
    close(got, want, limit)


# ------------------------------------------------------------------------------------- conv


def run_conv(
    kind,
    x,
    w,
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    groups=1,
    looks=None,
    limit=1e-5,
    only=("conv", "conv_input", "conv_weight"),
    choice=None,
    **caps,
):
    """A convolution and its two gradients; `looks` are views of x, w and dy."""
    look_x, look_w, look_y = looks or (lambda t: t,) * 3
    x64, w64 = seen(x, look_x), seen(w, look_w)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y64 = torch.nn.functional.conv2d(x64, w64, None, stride, padding, dilation, groups)
    # look_y applied to this buffer has the shape of y.
    dy = numbers(*look_y(torch.empty(y64.shape)).shape, seed=2)
    dy64 = seen(dy, look_y)
    dx64, dw64, _ = torch.ops.aten.convolution_backward(
        dy64, x64, w64, None, stride, padding, dilation, False, (0, 0), groups, (True, True, False)
    )
    vx, vw, vy = as_view(look_x), as_view(look_w), as_view(look_y)
    cases = {
        "conv": ([x, w], [vx, vw], y64, ACC),
        "conv_input": ([dy, w], [vy, vw], dx64, ACC),
        "conv_weight": ([dy, x], [vy, vx], dw64, {}),
    }
    for op in only:
        arrays, views, want, extra = cases[op]
        graph, data = make(op, arrays, views, [(want.shape, "f32")], {**geometry, "shape": tuple(want.shape), **extra})
        check_graph(graph)
        lower = chosen(getattr(contract, f"lower_{op}"), choice)
        (got,) = run_node(lower, graph, data, device(kind, **caps))
        close(got, want, limit)


# ------------------------------------------------------------------------------------- epilogues


def relu_of_bias(load: tuple, second: bool) -> dict:
    """An epilogue with two results: max(acc + bias, 0), and where it is positive."""
    program = (
        Instr("acc", "f32"),
        Instr("load", "f32", (), load),
        Instr("add", "f32", (0, 1)),
        Instr("const", "f32", (), (0.0,)),
        Instr("max", "f32", (2, 3)),
        Instr("gt", "bool", (2, 3)),
    )
    return {"program": program, "stores": (Store(4), Store(5)) if second else (Store(4),)}
