"""Half arithmetic: products and convolutions whose terms are multiplied in halves, against float64.

Both operands are rounded to halves (2^-12 on average), and so is each product and each sum of a few products. The
relative norm of the error must be below 2^-9 for any shape, because longer sums are in float32; random data has about
a third of it. A device without cl_khr_fp16 cannot run these kernels; there they are only compiled, by clang for SPIR.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from handheld.backends.reference.ops import run_node as reference
from handheld.errors import PlanError
from handheld.graph.check import check
from handheld.graph.program import Instr, Store
from handheld.plan.lowering import candidates, lower
from helpers.harness import caps_of_kind, error, make, queue, run_node, view

TOLERANCE = 2.0**-9
KINDS = ("cpu", "gpu")
HALF = {"arithmetic": "half"}
ACC = {"program": (Instr("acc", "f32"),), "stores": (Store(0),), **HALF}
PRODUCTS = [(37, 41, 29, ""), (64, 64, 64, ""), (97, 131, 67, "ab"), (33, 300, 19, "b"), (3, 5, 9000, "a")]
CONVOLUTIONS = [
    ((2, 3, 13, 11), (5, 3, 3, 3), (1, 1), (1, 1), 1),
    ((3, 16, 9, 9), (24, 16, 1, 1), (1, 1), (0, 0), 1),
    ((2, 8, 15, 14), (12, 4, 3, 2), (2, 1), (1, 0), 2),
]


def numbers(kind: type, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def product(m: int, n: int, k: int, turned: str, kinds=(np.float32, np.float16), out: str = "f32"):
    a = numbers(kinds[0], *((k, m) if "a" in turned else (m, k)))
    b = numbers(kinds[1], *((n, k) if "b" in turned else (k, n)), seed=1)
    views = [
        (lambda t: view(t, (m, k), (1, m))) if "a" in turned else None,
        (lambda t: view(t, (k, n), (1, k))) if "b" in turned else None,
    ]
    return make("matmul", [a, b], views, [((m, n), out)], {"shape": (m, n), **ACC})


def convolution(op: str, x, w, stride, padding, groups, kinds=(np.float16, np.float32)):
    y = [x[0], w[0], *((x[2 + i] + 2 * padding[i] - w[2 + i]) // stride[i] + 1 for i in (0, 1))]
    around = {"stride": stride, "padding": padding, "dilation": (1, 1), "groups": groups}
    first, second, shape = {"conv": (x, w, y), "conv_input": (y, w, x), "conv_weight": (y, x, w)}[op]
    arrays = [numbers(kinds[0], *first), numbers(kinds[1], *second, seed=1)]
    end = HALF if op == "conv_weight" else ACC
    return make(op, arrays, None, [(tuple(shape), "f32")], {**around, "shape": tuple(shape), **end})


def graphs():
    for case in PRODUCTS:
        yield product(*case)
    for op, case in itertools.product(("conv", "conv_input", "conv_weight"), CONVOLUTIONS):
        yield convolution(op, *case)


def of_device(kind: str, **change: object):
    return caps_of_kind(kind, fp16=True, **({"features": ""} | change))


@pytest.fixture(scope="module")
def device_halves():
    if "cl_khr_fp16" not in queue().device.extensions.split():
        pytest.skip(f"{queue().device.name} has no cl_khr_fp16")


def held(graph, data, kind, choice=None, **change) -> float:
    check(graph)
    values = {i: torch.from_numpy(a).double() for i, a in data.items()}
    want = np.asarray(reference(graph.nodes[0], graph, values, torch.float64)[0])
    (got,) = run_node(lambda n, g, c: lower(n, g, c, choice), graph, data, of_device(kind, **change))
    assert np.isfinite(got.astype(np.float64)).all()
    return error(got, want)


@pytest.mark.usefixtures("device_halves")
@pytest.mark.parametrize("kind", KINDS)
def test_products_and_convolutions(kind):
    errors = [held(graph, data, kind) for graph, data in graphs()]
    assert max(errors) < TOLERANCE
    assert min(errors) > 2.0**-16  # float32 would be nearer: the products really are halves


@pytest.mark.usefixtures("device_halves")
@pytest.mark.parametrize("kinds", [(np.float32, np.float32), (np.float16, np.float16)])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_as_halves_or_floats(kind, kinds):
    assert held(*product(65, 50, 130, "", kinds, "f16"), kind) < TOLERANCE
    assert held(*convolution("conv", *CONVOLUTIONS[0], kinds), kind) < TOLERANCE


@pytest.mark.usefixtures("device_halves")
@pytest.mark.parametrize("kinds", [(np.float32, np.float16), (np.float16, np.float32)])
def test_textures(kinds):
    if not queue().device.image_support:
        pytest.skip("the device has no images")
    graph, data = product(64, 96, 64, "", kinds)
    caps = {"images": True, "vendor": "QUALCOMM"}
    (choice, *_) = candidates(graph.nodes[0], graph, of_device("gpu", **caps))
    assert choice["TEXTURE"] == 1
    assert held(graph, data, "gpu", choice, **caps) < TOLERANCE


@pytest.mark.usefixtures("device_halves")
@pytest.mark.parametrize("kind", KINDS)
def test_some_variants(kind):
    for graph, data in (product(97, 131, 67, "ab"), product(33, 70, 3000, ""), convolution("conv", *CONVOLUTIONS[1])):
        offered = candidates(graph.nodes[0], graph, of_device(kind))
        for choice in offered[:: max(len(offered) // 3, 1)]:
            assert held(graph, data, kind, choice) < TOLERANCE, choice


@pytest.mark.usefixtures("device_halves")
@pytest.mark.parametrize("kind", KINDS)
def test_only_short_sums_are_halves(kind):
    """2^17 ones: a sum in halves would stop at 2,048, and one in float32 is exact."""
    k = 1 << 17
    arrays = [np.ones((2, k), np.float16), np.ones((k, 3), np.float16)]
    graph, data = make("matmul", arrays, None, [((2, 3), "f32")], {"shape": (2, 3), **ACC})
    (got,) = run_node(lower, graph, data, of_device(kind))
    assert (got == k).all()


def test_a_device_without_halves_says_so():
    graph, _ = product(8, 8, 8, "")
    with pytest.raises(PlanError, match=r"cl_khr_fp16.*Try: precision='half'"):
        lower(graph.nodes[0], graph, caps_of_kind("gpu", fp16=False))


def texts(kind: str) -> set[str]:
    found = set()
    for graph, _ in graphs():
        node, caps = graph.nodes[0], of_device(kind, images=kind == "gpu", vendor="QUALCOMM")
        for choice in candidates(node, graph, caps)[:2]:
            found |= {launch.text for launch in lower(node, graph, caps, choice).launches}
    return found


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_texts_compile_for_spir(kind):
    """Compiles every program as OpenCL C 1.2 with cl_khr_fp16, as a phone's compiler does."""
    version = re.search(r"version (\d+)", subprocess.getoutput("clang --version"))
    if version is None or int(version[1]) < 13:
        pytest.skip("clang 13 is the first that declares OpenCL's functions by itself")
    options = [
        "-cl-std=CL1.2",
        "-Xclang",
        "-cl-ext=+cl_khr_fp16",
        "--target=spir64",
        "-fsyntax-only",
        "-x",
        "cl",
        "-w",
        "-",
    ]
    for text in sorted(texts(kind), key=len)[::3]:
        done = subprocess.run(["clang", *options], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
