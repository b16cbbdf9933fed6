"""Programs that are built as one: each text keeps its own names, and a text that does not build is named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.backends.base import describe, open_session
from handheld.backends.opencl import devices as opencl_devices
from handheld.backends.opencl import programs
from handheld.conformance.cases import CASES
from handheld.conformance.check import Held, captured
from handheld.errors import BuildError
from handheld.passes.half import store_halves
from handheld.plan import texts as plan_texts
from handheld.plan.lowering import FAMILIES, candidates, family, lower
from handheld.plan.merge import merge, names, renamed
from handheld.plan.widen import texts_of
from helpers.models import Vision

ADD = """#ifndef STEP
#define STEP 1  // a parameter
#endif
typedef struct { int by; } Change;
typedef int16 __attribute__((aligned(4))) loose16;
inline int change(Change c, int x) { return x + c.by; }
#define DEFINE(name, n) int name(int x) { return x + n; }
DEFINE(plus, 100)
__kernel void run(__global int *x) {
  Change c;
  c.by = STEP;
  x[0] = plus(change(c, x[0]));
}
"""
SCALE = """#define STEP 3
typedef struct {
  int first, second;
} Change;
float change(int x);
float change(int x)
{ return x * STEP; }
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void run(__global int *x) { Change c = {2, 5}; x[0] = (int)change(x[0]) * c.first + c.second; }
"""


def test_each_text_keeps_its_names() -> None:
    found = opencl_devices.find("opencl")
    context = cl.Context([found.device])
    queue = cl.CommandQueue(context)
    program = cl.Program(context, merge([ADD, SCALE, ADD])).build(options=["-w"])
    host = np.array([7], np.int32)
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=host)
    for i, want in ((0, 7 + 1 + 100), (1, (108 * 3) * 2 + 5), (2, 653 + 101)):
        kernel = cl.Kernel(program, renamed("run", i))
        kernel.set_args(memory)
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, host, memory)
        assert host[0] == want


ODD = """
#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#define DEFINE(NAME, n)          \\
  int NAME(int x) {              \\
    return x + n;                \\
  }
inline __attribute__((always_inline)) void product(const float *a, // of (1)
                                                   float *b) { if (a) { *b = *a; } }
static __attribute__((noinline))
float4 far(int x)
{
  return (float4)(x);
}
DEFINE(plus, 1)
DEFINE(minus, -1)
GLUE(float, 4) made(int n) { return (float4)(n); }
typedef GLUE(float, 4) lanes;
typedef lanes __attribute__((aligned(4))) loose;
typedef struct Node { int x; struct Node *next; } Node_t;
struct Plain { int y; };
__constant float table[2] = {1.0f, 2.0f}, last = 3.0f;
int declared(int x);
#ifdef WIDE
int branch(int x) {
#else
int branch(long x) {
#endif
  return x; /* { */
}
#if 0
#define either(x) (x)
#else
int either(int x) { return x; }
#endif
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void run(__global float *x) { x[0] = table[0]; }
"""


def test_names_of_odd_declarations() -> None:
    macros, own = names(ODD)
    assert macros == ["GLUE_", "GLUE", "DEFINE", "either"]
    functions = ["product", "far", "plus", "minus", "made", "declared", "branch", "either", "run"]
    assert set(own) == {*functions, "lanes", "loose", "Node", "Node_t", "Plain", "table", "last"}
    cl.Program(cl.Context([opencl_devices.find("opencl").device]), merge([ODD, ODD])).build(options=["-w"])


#: op cases that reach every family, and all texts of a family that declare their own names
REACHING = (
    "linear",
    "conv2d 3x3",
    "conv2d large",
    "conv2d double use",
    "conv2d depthwise",
    "max_pool2d indices",
    "pool3d padded",
    "attention",
    "attention causal wide",
    "multihead",
    "lstm",
    "gru",
    "ctc mean",
    "scatter_add",
    "index_put two",
    "embedding",
    "sort",
    "softmax 0",
)


@pytest.fixture(scope="module")
def texts_by_family() -> dict[str, dict[tuple[str, ...], str]]:
    """One text per set of declared names, for CPUs with short and long vectors, in floats and halves."""
    caps, found = describe("opencl"), dict[str, dict[tuple[str, ...], str]]()
    for case in REACHING:
        graph = captured(Held(CASES[case])).graphs["case"]
        for width, precise in itertools.product((8, 16), (graph, store_halves(graph))):
            cpu = replace(caps, kind="cpu", vector_width=width)
            for node in precise.nodes:
                for choice in (None, *candidates(node, precise, cpu)[:3]):
                    launches = lower(node, precise, cpu, choice).launches
                    for text in texts_of(launches, cpu).values():
                        found.setdefault(family(node.op), {}).setdefault(tuple(names(text)[1]), text)
    return found


def test_the_cases_reach_every_family(texts_by_family: dict[str, dict[tuple[str, ...], str]]) -> None:
    assert set(texts_by_family) == {family(op) for op in FAMILIES}


def test_every_name_of_every_family_is_found(texts_by_family: dict[str, dict[tuple[str, ...], str]]) -> None:
    """Every text is twice in one program, so that the compiler reports a name that was not found."""
    context = cl.Context([opencl_devices.find("opencl").device])
    for texts in texts_by_family.values():
        cl.Program(context, merge([text for text in texts.values() for _ in range(2)])).build(options=["-w"])


class Attending(nn.Module):
    """Attention with dropout in training and without it in evaluation: two programs of one family."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.end = inner, nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.inner, nn.MultiheadAttention):
            x = self.inner(x, x, x, need_weights=False)[0]
        else:
            x = self.inner(x)
        return self.end(x.mean(1))


@pytest.mark.parametrize(
    "inner",
    [
        lambda: nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True), 1),
    ],
    ids=["MultiheadAttention", "TransformerEncoder"],
)
def test_attention_with_dropout_is_one_program(
    inner: Callable[[], nn.Module], recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, batch = Attending(inner()), (torch.randn(4, 9, 32), torch.randint(0, 5, (4,)))
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), batch)
    plan = step.plan("opencl", tuning=False)
    recwarn.clear()
    capfd.readouterr()
    with plan.start() as trainer:
        found = [float(trainer.step(*batch)) for _ in range(8)]
        builds = trainer.counters.builds
    assert found[-1] < found[0]
    assert builds == len({family(node.op) for graph in plan.graphs.values() for node in graph.graph.nodes})
    assert not recwarn.list and not capfd.readouterr().err


def start() -> tuple[handheld.Step, tuple[torch.Tensor, torch.Tensor]]:
    model = Vision()
    batch = torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False), batch


def losses(step: handheld.Step, batch: tuple[torch.Tensor, ...]) -> tuple[list[float], int]:
    values = dict(step.values)
    with step.plan("opencl", tuning=False).start() as trainer:
        found = [float(trainer.step(*batch)) for _ in range(3)]
        builds = trainer.counters.builds
    step.values.update(values)
    return found, builds


def test_merged_or_apart_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    step, batch = start()
    want, builds = losses(step, batch)
    assert builds < step.plan("opencl").graphs["train"].programs
    monkeypatch.setattr(plan_texts, "merge", lambda texts: "this is no program;")
    with pytest.warns(UserWarning, match="programs built separately"):
        found, apart = losses(step, batch)
    assert found == want and apart == step.plan("opencl").graphs["train"].programs


def test_the_one_that_does_not_build_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = start()
    plan = step.plan("opencl", tuning=False)
    build = programs.build
    monkeypatch.setattr(
        programs,
        "build",
        lambda context, text: build(context, text.replace("__kernel void map_blocks", "__kernel vood map_blocks")),
    )
    with pytest.raises(BuildError, match="could not build kernel map_blocks"):
        open_session(plan)
