"""Tiles, textures and candidates of matrix products and convolutions."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
import torch

import handheld
from handheld.backends.base import describe
from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.kernels import contract, contract_local
from handheld.kernels.base import Lowered, read_cl
from handheld.kernels.contract_problem import ConvMaps, MatmulMaps
from handheld.plan.codec import from_json
from helpers.contractions import ACC, device, numbers, run_conv, run_matmul
from helpers.harness import caps_of_kind, make, queue

# ------------------------------------------------------------------------------------- choices

LARGE = {"max_work_group": 1024, "local_mem_bytes": 48 << 10}


#: name -> a function that runs a choice; together they cover all ways to load A and B
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
    """Two uses of each tile, one with k in parts; all uses with --all-cases."""
    named = dict(zip(contract_local.NAMES, contract_local.TILES[number], strict=True))
    names = list(TILED)
    if not pytestconfig.getoption("--all-cases"):
        names = [names[number % 4], names[4 + number % 5]]
    for i, name in enumerate(names):
        TILED[name]({**named, "splits": 1 + (number + i) % 2})


@pytest.mark.parametrize("name", ["float4", "3x3"])
def test_one_buffer_and_two_sums(name, monkeypatch):
    """Little local memory, and sums too long for one variable."""
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
    """Textures cover whole segments, and tensors begin anywhere in them."""
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
        contract.lower_conv(graph.nodes[0], graph, caps, large)  # needs groups of 256 on a device that allows 128


# ------------------------------------------------------------------------------------- the rest


def test_compiles_alone():
    for name in ("depthwise", "depthwise_lanes"):
        cl.Program(queue().context, read_cl("wide.cl") + read_cl(f"{name}.cl")).build()


@pytest.mark.parametrize("mode", ["MATMUL", "CONV", "WEIGHT"])
@pytest.mark.parametrize("part", ["register", "local", "combine"])
def test_every_mode_compiles_alone(mode, part):
    text = read_cl("contract_maps.cl") + read_cl(f"contract_{part}.cl")
    if part == "register":
        text = read_cl("wide.cl") + text
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
    whole = {item.launches[0].text for item in lowered if len(item.launches) == 1}
    assert len(whole) <= texts


def test_maps_have_the_order_of_the_kernels() -> None:
    found = re.findall(r"#define MAP_PARAMS ((?:.*\\\n)*.*)", read_cl("contract_maps.cl"))
    for text, record in zip(found, (MatmulMaps, ConvMaps), strict=True):
        assert tuple(name.lower() for name in re.findall(r"int (\w+)", text)) == record._fields


@pytest.mark.parametrize(("images", "parts"), [(4, 1), (128, 2)])
def test_weight_gradients_of_few_pixels_have_smaller_blocks(images, parts):
    """All cores have a block without partial sums, which take longer to add up than a few terms."""
    x, w = (images, 128, 4, 4), (128, 128, 3, 3)
    attrs = {"shape": w, "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    graph = make("conv_weight", [np.zeros(x, np.float32)] * 2, None, [(w, "f32")], attrs)[0]
    caps = caps_of_kind("cpu", vector_width=16, compute_units=2)
    lowered = contract.lower_conv_weight(graph.nodes[0], graph, caps)
    (work,) = (launch.global_size for launch in lowered.launches if launch.kernel == "direct")
    assert work[2] == parts and work[0] * work[2] >= 4
