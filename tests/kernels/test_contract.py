"""Matrix products and convolutions against torch in float64, both variants, awkward shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
import torch

import handheld
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.check import check as check_graph
from handheld.graph.program import Instr
from handheld.kernels import contract, contract_local
from handheld.kernels.base import Lowered, read_source
from handheld.plan.codec import from_json
from helpers.harness import caps_of_kind, error, make, queue, run_node, view

#: `small` is a GPU with small work-groups; its tiles compile in half the time
KINDS = ("cpu", "small")
ACC = {"program": (Instr("acc", "f32"),), "stores": (0,)}


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
    """The same view that `look` makes, on a float64 tensor."""
    tensor = torch.from_numpy(array.astype(np.float64))
    return look(tensor)


def as_view(look):
    """The View of what torch's strides say `look` does to a dense tensor."""

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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (7, 13, 5),
        (64, 64, 64),
        (97, 131, 67),
        (1, 257, 300),
        (259, 1, 31),
        (6, 16, 256),
        (101, 17, 521),
        (33, 300, 19),
    ],
)
def test_matmul(kind, m, n, k):
    run_matmul(numbers(m, k), numbers(k, n, seed=1), kind)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (97, 131, 67), (31, 300, 19)])
def test_matmul_large_tiles(m, n, k):
    run_matmul(numbers(m, k), numbers(k, n, seed=1), "gpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("look_a", "look_b", "a", "b"),
    [
        (lambda t: t.t(), None, (23, 37), (23, 41)),
        (None, lambda t: t.t(), (37, 23), (41, 23)),
        (lambda t: t[3:, 2::2], lambda t: t[1:12, 5:], (40, 24), (20, 50)),
        (lambda t: t[:, :1].expand(-1, 29), None, (17, 4), (29, 19)),
        (None, lambda t: t.expand(29, 18), (17, 29), (1, 18)),
        (None, lambda t: t[0].expand(29, 40), (17, 29), (1, 1)),
        (lambda t: t.expand(5, -1, -1), None, (13, 7), (5, 7, 11)),
        (None, lambda t: t.expand(2, 3, -1, -1), (2, 3, 13, 7), (7, 11)),
        (lambda t: t.transpose(1, 2), lambda t: t.permute(0, 2, 3, 1), (2, 13, 3, 8), (2, 19, 3, 8)),
        (None, None, (2, 3, 5, 7, 4), (2, 3, 5, 4, 6)),
        (lambda t: t.permute(2, 0, 1, 3, 4), lambda t: t.permute(1, 2, 0, 3, 4), (3, 5, 2, 7, 4), (5, 2, 3, 4, 6)),
    ],
)
def test_matmul_views(kind, look_a, look_b, a, b):
    run_matmul(numbers(*a), numbers(*b, seed=1), kind, look_a, look_b)


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_long_sum(kind):
    a, b = np.abs(numbers(3, 32768)), np.abs(numbers(32768, 5, seed=1))
    run_matmul(a, b, kind, limit=1e-6)  # split
    run_matmul(a, b, kind, limit=1e-6, compute_units=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "k"), [((3, 5), 0), ((0, 5), 3), ((3, 0), 3), ((0, 3, 5), 2)])
def test_matmul_empty(kind, shape, k):
    a, b = numbers(*shape[:-1], k), numbers(*shape[:-2], k, shape[-1])
    graph, data = make("matmul", [a, b], None, [(shape, "f32")], {"shape": shape, **ACC})
    (got,) = run_node(contract.lower_matmul, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(shape, np.float32))
    lowered = contract.lower_matmul(graph.nodes[0], graph, device(kind))
    assert bool(lowered.launches) == (0 not in shape)


@pytest.mark.parametrize("work_group", [15, 3])
def test_matmul_small_devices(work_group):
    run_matmul(numbers(71, 37), numbers(37, 67, seed=1), "gpu", max_work_group=work_group)


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
    # a buffer of which look_y makes the shape of y
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


CONVS = {
    "3x3": ((2, 5, 11, 13), (7, 5, 3, 3), {"padding": (1, 1)}),
    "no padding": ((2, 5, 11, 13), (7, 5, 3, 3), {}),
    "1x1": ((3, 17, 7, 5), (19, 17, 1, 1), {}),
    "1x1 stride 2": ((2, 5, 9, 8), (7, 5, 1, 1), {"stride": (2, 2)}),
    "stride 2": ((2, 3, 15, 14), (8, 3, 3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    "stem": ((1, 3, 37, 41), (11, 3, 7, 7), {"stride": (2, 2), "padding": (3, 3)}),
    "dilated": ((2, 4, 17, 19), (5, 4, 3, 3), {"padding": (2, 3), "dilation": (2, 3)}),
    "dilated, strided": ((2, 4, 17, 19), (5, 4, 3, 2), {"padding": (2, 1), "dilation": (2, 3), "stride": (2, 3)}),
    "stride beyond kernel": ((2, 3, 17, 18), (5, 3, 2, 2), {"stride": (4, 5)}),
    "dilation shares a factor with stride": (
        (1, 3, 23, 21),
        (5, 3, 3, 3),
        {"stride": (4, 6), "dilation": (2, 4), "padding": (3, 2)},
    ),
    "groups": ((2, 12, 9, 7), (9, 4, 3, 3), {"padding": (1, 1), "groups": 3}),
    "groups, strided": ((2, 8, 9, 7), (12, 2, 3, 3), {"groups": 4, "stride": (2, 1)}),
    "one dimension": ((2, 5, 37, 1), (7, 5, 3, 1), {"padding": (1, 0), "stride": (2, 1)}),
    "one row": ((2, 5, 1, 37), (7, 5, 1, 4), {"padding": (0, 1)}),
    "one pixel": ((4, 33, 1, 1), (35, 33, 1, 1), {}),
    "padding wider than the image": ((2, 3, 2, 1), (4, 3, 3, 5), {"padding": (3, 4)}),
    "one channel": ((1, 1, 19, 23), (1, 1, 5, 4), {"padding": (2, 1)}),
    "many channels": ((1, 271, 5, 6), (70, 271, 3, 3), {"padding": (1, 1)}),
    "depthwise": ((2, 7, 11, 13), (7, 1, 3, 3), {"padding": (1, 1), "groups": 7}),
    "depthwise stride 2": ((2, 7, 11, 14), (7, 1, 3, 3), {"padding": (1, 1), "groups": 7, "stride": (2, 2)}),
    "depthwise 5x5": ((1, 19, 14, 14), (19, 1, 5, 5), {"padding": (2, 2), "groups": 19, "stride": (2, 1)}),
    "depthwise dilated": (
        (2, 5, 17, 19),
        (5, 1, 3, 3),
        {"padding": (2, 4), "groups": 5, "dilation": (2, 4), "stride": (1, 2)},
    ),
    "depthwise multiplier": ((2, 5, 9, 10), (15, 1, 3, 2), {"padding": (1, 1), "groups": 5, "stride": (2, 1)}),
    "depthwise row": ((2, 6, 1, 40), (6, 1, 1, 4), {"padding": (0, 3), "groups": 6}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONVS)
def test_conv(kind, name):
    x, w, geometry = CONVS[name]
    run_conv(kind, numbers(*x), numbers(*w, seed=1), **geometry)


@pytest.mark.parametrize("name", ["stride 2", "many channels"])
def test_conv_large_tiles(name):
    x, w, geometry = CONVS[name]
    run_conv("gpu", numbers(*x), numbers(*w, seed=1), **geometry)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 6])
def test_conv_views(kind, groups):
    pad = {"padding": (1, 1), "stride": (2, 1), "groups": groups}
    # x a slice of channels and pixels, w transposed
    x = numbers(2, 9, 15, 16)
    w = numbers(6 // groups, 8 if groups == 1 else 6, 3, 3, seed=1)
    looks = (lambda t: t[:, 2:8, 1:, ::2], lambda t: t.transpose(0, 1), lambda t: t)
    run_conv(kind, x, w, looks=looks, **pad)
    # x channels last
    looks = (lambda t: t.permute(0, 3, 1, 2), lambda t: t.transpose(2, 3), lambda t: t)
    w = numbers(6, 6 // groups, 3, 3, seed=1)
    run_conv(kind, numbers(2, 11, 12, 6), w, looks=looks, **pad)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("groups", [1, 4])
def test_conv_expanded_gradient(kind, kernel, groups):
    """The gradient of a mean: one value for every pixel."""
    x, w = numbers(3, 4, 6, 5), numbers(8, 4 // groups, kernel, kernel, seed=1)
    looks = (lambda t: t, lambda t: t, lambda t: t[:, :, :1, :1].expand_as(t))
    run_conv(kind, x, w, looks=looks, groups=groups, padding=(kernel // 2, kernel // 2))


@pytest.mark.parametrize("kind", KINDS)
def test_conv_weight_long_sum(kind):
    x, w = np.abs(numbers(8, 3, 33, 31)), numbers(5, 3, 3, 3)
    run_conv(kind, x, w, padding=(1, 1), limit=1e-4, only=("conv_weight",))
    run_conv(kind, x, w, padding=(1, 1), limit=1e-4, only=("conv_weight",), compute_units=32)
    x, w = np.abs(numbers(8, 3, 63, 31)), numbers(3, 1, 5, 4)
    run_conv(kind, x, w, groups=3, limit=1e-5, only=("conv_weight",), compute_units=32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "w", "launches"),
    [((0, 3, 5, 5), (4, 3, 3, 3), 0), ((2, 3, 5, 5), (0, 3, 3, 3), 0), ((2, 0, 5, 5), (4, 0, 3, 3), 1)],
)
def test_conv_empty(kind, shape, w, launches):
    out = (shape[0], w[0], 5, 5)
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "shape": out}
    graph, data = make("conv", [numbers(*shape), numbers(*w)], None, [(out, "f32")], {**attrs, **ACC})
    (got,) = run_node(contract.lower_conv, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(out, np.float32))
    lowered = contract.lower_conv(graph.nodes[0], graph, device(kind))
    assert len(lowered.launches) == launches


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("images", [0, 2])
def test_conv_weight_empty(kind, groups, images):
    """No image, or images of no width: nothing is added up."""
    x, dy, w = (images, 3, 4, images), (images, 6, 4, 0), (6, 3 // groups, 3, 3)
    attrs = {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": groups, "shape": w}
    graph, data = make("conv_weight", [numbers(*dy), numbers(*x)], None, [(w, "f32")], attrs)
    (got,) = run_node(contract.lower_conv_weight, graph, data, device(kind))
    assert np.array_equal(got, np.zeros(w, np.float32))


# ------------------------------------------------------------------------------------- epilogues


def relu_of_bias(load: tuple, second: bool) -> dict:
    """max(acc + bias, 0), and where it is positive."""
    program = (
        Instr("acc", "f32"),
        Instr("load", "f32", (), load),
        Instr("add", "f32", (0, 1)),
        Instr("const", "f32", (), (0.0,)),
        Instr("max", "f32", (2, 3)),
        Instr("gt", "bool", (2, 3)),
    )
    return {"program": program, "stores": (4, 5) if second else (4,)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [1, 64])
def test_matmul_epilogue(kind, units):
    a, b, bias = numbers(2, 3, 19, 2600), numbers(2, 3, 2600, 23, seed=1), numbers(23, seed=2)
    shape = (2, 3, 19, 23)
    graph, data = make(
        "matmul",
        [a, b, bias],
        [None, None, lambda t: view(t, shape, (0, 0, 0, 1))],
        [(shape, "f32"), (shape, "bool")],
        {"shape": shape, **relu_of_bias((2, (), 0.0), True)},
    )
    check_graph(graph)
    caps = device(kind, compute_units=units)
    got, mask = run_node(contract.lower_matmul, graph, data, caps)
    want = torch.from_numpy(a.astype(np.float64)) @ torch.from_numpy(b.astype(np.float64))
    want += torch.from_numpy(bias.astype(np.float64))
    close(got, want.relu())
    assert np.mean(mask.astype(bool) == (want > 0).numpy()) > 0.999


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("guarded", "groups", "kernel"), [(False, 1, 1), (False, 2, 3), (True, 1, 3), (True, 6, 3), (False, 6, 1)]
)
def test_conv_epilogue(kind, guarded, groups, kernel):
    x, w, bias = numbers(2, 6, 7, 9), numbers(6, 6 // groups, kernel, kernel, seed=1), numbers(6)
    shape, pad = (2, 6, 7, 9), kernel // 2
    load = (2, ((3, 2, 5),) if guarded else (), 0.0)
    attrs = {
        "stride": (1, 1),
        "padding": (pad, pad),
        "dilation": (1, 1),
        "groups": groups,
        "shape": shape,
        **relu_of_bias(load, False),
    }
    for op in ("conv", "conv_input"):
        graph, data = make(
            op, [x, w, bias], [None, None, lambda t: view(t, shape, (0, 1, 0, 0))], [(shape, "f32")], attrs
        )
        check_graph(graph)
        (got,) = run_node(getattr(contract, f"lower_{op}"), graph, data, device(kind))
        name = {"conv": "conv2d", "conv_input": "conv_transpose2d"}[op]
        forward = getattr(torch.nn.functional, name)
        want = forward(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=pad, groups=groups)
        plus = torch.from_numpy(bias).double().view(1, 6, 1, 1).expand(shape).clone()
        if guarded:
            plus[..., :2] = 0
            plus[..., 5:] = 0
        close(got, (want + plus).relu())


# ------------------------------------------------------------------------------------- choices

LARGE = {"max_work_group": 1024, "local_mem_bytes": 48 << 10}
#: name: what it runs, given a choice; between them all ways to load A and B
TILED = {
    "scalars": lambda c: run_matmul(numbers(67, 45), numbers(45, 133, seed=1), "gpu", choice=c, **LARGE),
    "float4": lambda c: run_matmul(numbers(68, 84), numbers(84, 132, seed=1), "gpu", choice=c, **LARGE),
    "float4 across": lambda c: run_matmul(
        numbers(2, 84, 36), numbers(2, 132, 84, seed=1), "gpu", lambda t: t.mT, lambda t: t.mT, choice=c, **LARGE
    ),
    "scalars across": lambda c: run_matmul(
        numbers(85, 37), numbers(131, 85, seed=1), "gpu", lambda t: t.mT, lambda t: t.mT, choice=c, **LARGE
    ),
    "3x3": lambda c: run_conv(
        "gpu", numbers(3, 10, 5, 7), numbers(19, 10, 3, 3, seed=1), padding=(1, 1), choice=c, **LARGE
    ),
    "3x3, stride 2": lambda c: run_conv(
        "gpu", numbers(3, 10, 5, 7), numbers(19, 10, 3, 3, seed=1), stride=(2, 2), padding=(1, 1), choice=c, **LARGE
    ),
    "1x1": lambda c: run_conv("gpu", numbers(2, 44, 2, 6), numbers(20, 44, 1, 1, seed=1), choice=c, **LARGE),
    "1x1 of single pixels": lambda c: run_conv(
        "gpu", numbers(20, 44, 1, 1), numbers(36, 44, 1, 1, seed=1), choice=c, **LARGE
    ),
    "4x4 without padding": lambda c: run_conv(
        "gpu", numbers(4, 4, 8, 9), numbers(12, 4, 4, 4, seed=1), groups=1, choice=c, **LARGE
    ),
}


@pytest.mark.parametrize("number", range(len(contract_local.TILES)))
def test_every_tile(number, pytestconfig):
    """Two ways of using each tile, one with k in parts; all ways with --all-cases."""
    named = dict(zip(contract_local.NAMES, contract_local.TILES[number], strict=True))
    names = list(TILED)
    if not pytestconfig.getoption("--all-cases"):
        names = [names[number % 4], names[4 + number % 5]]
    for i, name in enumerate(names):
        TILED[name]({**named, "splits": 1 + (number + i) % 2})


@pytest.mark.parametrize("name", ["float4", "3x3"])
def test_one_buffer_and_two_sums(name, monkeypatch):
    """Little local memory, and sums that are too long for one variable."""
    monkeypatch.setattr(contract_local, "LONG", 16)
    monkeypatch.setattr(contract_local, "RUN", 16)
    monkeypatch.setitem(LARGE, "local_mem_bytes", 7 << 10)
    for tile in ((8, 8, 4, 4, 16, 1, 8), (8, 8, 8, 8, 8, 1, 2), (4, 4, 4, 4, 32, 4, 8)):
        if tile in contract_local.TILES:
            TILED[name]({**dict(zip(contract_local.NAMES, tile, strict=True)), "splits": 1})


@pytest.mark.parametrize("name", TILED)
def test_textures(name, monkeypatch):
    monkeypatch.setitem(LARGE, "images", True)
    tile = dict(zip(contract_local.NAMES, (8, 8, 4, 4, 16, 1, 8), strict=True))
    TILED[name]({**tile, "splits": 1, "TEXTURE": 1})


def test_textures_run_whole_steps(monkeypatch):
    """Textures lie over whole segments: tensors begin anywhere in them."""
    monkeypatch.setattr(contract_local, "_likes_textures", lambda caps: True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5)
    )
    batch = torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 4])
    step = handheld.capture(
        model, torch.nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), batch, evaluate=False
    )
    want = torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).item()
    plan = step.plan("opencl", caps=replace(describe("opencl"), kind="gpu"))
    assert "textures" in plan.explain()
    with from_json(plan.to_json(), step).start() as trainer:
        assert abs(float(trainer.step(*batch)) - want) < 1e-5


def layer(x=(4, 24, 9, 9), w=(40, 24, 3, 3), y=(4, 40, 9, 9)):
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "shape": y}
    arrays = [np.empty(x, np.float32), np.empty(w, np.float32)]
    return make("conv", arrays, None, [(y, "f32")], {**attrs, **ACC})[0]


DEVICES = [DeviceCaps.shipped(name) for name in ("adreno-740", "mali-g78", "minimal-embedded")]


@pytest.mark.parametrize(
    "caps",
    [
        *DEVICES,
        caps_of_kind("gpu", compute_units=132, **LARGE),
        caps_of_kind("gpu", max_work_group=1),
        caps_of_kind("cpu"),
        caps_of_kind("cpu", vector_width=16),
    ],
)
def test_candidates_are_legal(caps):
    graph = layer()
    node = graph.nodes[0]
    found = contract.candidates(node, graph, caps)
    assert 1 <= len(found) <= 40 and len({tuple(c.items()) for c in found}) == len(found)
    for choice in found:
        lowered = contract.lower_conv(node, graph, caps, choice)
        assert all(np.prod(launch.local_size) <= caps.max_work_group for launch in lowered.launches)
    if caps.kind == "gpu":
        assert contract.lower_conv(node, graph, caps, found[0]) == contract.lower_conv(node, graph, caps)


@pytest.mark.parametrize(
    "change", [{"WX": 3}, {"KT": 64}, {"splits": 0}, {"SLICES": 2, "UNROLL": 3}, {"MR": 6}, {"WY": None}]
)
def test_illegal_choices(change):
    graph, caps = layer(), caps_of_kind("gpu")
    legal = dict(zip((*contract_local.NAMES, "splits"), (8, 8, 4, 4, 16, 1, 8, 1), strict=True))
    contract.lower_conv(graph.nodes[0], graph, caps, legal)
    wrong = {k: v for k, v in {**legal, **change}.items() if v is not None}
    for choice in (wrong, {"MR": 6, "NV": 1, "rows": 7, "cols": 16, "splits": 1}):
        for kind in ("gpu", "cpu"):
            with pytest.raises(PlanError):
                contract.lower_conv(graph.nodes[0], graph, caps_of_kind(kind), choice)
    large = dict(zip((*contract_local.NAMES, "splits"), (16, 16, 8, 8, 16, 1, 8, 1), strict=True))
    with pytest.raises(PlanError):
        contract.lower_conv(graph.nodes[0], graph, caps, large)  # groups of 256 on 128


# ------------------------------------------------------------------------------------- the rest


def test_compiles_alone():
    cl.Program(queue().context, read_source("wide.cl") + read_source("depthwise.cl")).build()


@pytest.mark.parametrize("mode", ["MATMUL", "CONV", "WEIGHT"])
@pytest.mark.parametrize("part", ["register", "local", "combine"])
def test_every_mode_compiles_alone(mode, part):
    text = read_source("contract_maps.cl") + read_source(f"contract_{part}.cl")
    if part == "register":
        text = read_source("wide.cl") + text
    for split in (0, 1) if mode != "WEIGHT" and part != "combine" else (int(part != "combine"),):
        cl.Program(queue().context, text).build([f"-DMODE={mode}", f"-DSPLIT={split}"])


def test_flops():
    graph, _ = make(
        "matmul", [numbers(2, 3, 5), numbers(2, 5, 7)], None, [((2, 3, 7), "f32")], {"shape": (2, 3, 7), **ACC}
    )
    assert contract.flops(graph.nodes[0], graph) == 2 * 2 * 3 * 7 * 5
    geometry = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 2}
    x, w, y = (2, 6, 9, 9), (4, 3, 3, 3), (2, 4, 5, 5)
    want = 2 * 2 * 4 * 5 * 5 * 3 * 3 * 3
    cases = (("conv", x, w, y), ("conv_input", y, w, x), ("conv_weight", y, x, w))
    for op, first, second, out in cases:
        graph, _ = make(op, [numbers(*first), numbers(*second)], None, [(out, "f32")], {**geometry, "shape": out})
        assert contract.flops(graph.nodes[0], graph) == want


def test_devices_that_cannot():
    graph, _ = make("matmul", [numbers(3, 5), numbers(5, 7)], None, [((3, 7), "f32")], {"shape": (3, 7), **ACC})
    with pytest.raises(PlanError, match="local memory"):
        contract.lower_matmul(graph.nodes[0], graph, caps_of_kind("gpu", local_mem_bytes=100))


def lower_random_layer(rng, kind: str) -> Lowered:
    c, k, size, r = (int(rng.integers(2, n)) for n in (200, 200, 60, 4))
    x, w, y = (4, c, size, size), (k, c, r, r), (4, k, size + 3 - r, size + 3 - r)
    attrs = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1, "shape": y}
    arrays = [np.empty(x, np.float32), np.empty(w, np.float32)]
    graph, _ = make("conv", arrays, None, [(y, "f32")], {**attrs, **ACC})
    return contract.lower_conv(graph.nodes[0], graph, device(kind))


@pytest.mark.parametrize(("kind", "texts"), [("cpu", 1), ("gpu", 8)])
def test_one_text_serves_many_layers(kind, texts):
    rng = np.random.default_rng(0)
    lowered = [lower_random_layer(rng, kind) for _ in range(20)]
    whole = {item.launches[0].source for item in lowered if len(item.launches) == 1}
    assert len(whole) <= texts
