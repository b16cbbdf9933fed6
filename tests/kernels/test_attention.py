"""Compares attention with PyTorch in float64: values, lse and gradients, in both variants."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
import torch

from handheld.errors import PlanError
from handheld.graph.graph import Graph, View
from handheld.kernels import attention
from handheld.kernels.attention import candidates, flops, lower_attention, lower_attention_grad
from handheld.kernels.base import read_cl
from handheld.kernels.contract_local import MATRIX
from helpers.harness import caps_of_kind, error, make, run_node

PLAIN = {"scale": 0.3, "causal": False, "masked": False, "dropout": 0.0, "key": 0}
MOST = np.finfo(np.float32).max
KINDS = ("cpu", "wide", "gpu", "matrix")
#: batch, heads of q, heads of k and v, rows of q, rows of k, columns of q and k, columns of v
SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 7, 4, 4),
    (1, 2, 1, 67, 131, 16, 16),
    (2, 4, 2, 13, 3, 20, 33),
    (1, 1, 1, 130, 65, 64, 64),
    (1, 2, 2, 64, 64, 128, 80),
    (1, 1, 1, 9, 33, 200, 256),
    (1, 1, 1, 3, 1031, 8, 8),
]


def caps(kind: str, **change):
    if kind == "wide":
        return caps_of_kind("cpu", vector_width=16, **change)
    if kind == "matrix":  # A GPU with matrix units, which are emulated.
        return caps_of_kind("gpu", **{"features": MATRIX, "max_work_group": 256, "local_mem_bytes": 48 << 10, **change})
    return caps_of_kind(kind, **change)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).float().double()  # exact in float32


def by_hand(q, k, v, attrs, mask=None, kept=None):
    """out[b, h, l, e] and lse, computed step by step."""
    each = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(each, 1).transpose(-1, -2) * attrs["scale"]
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if attrs["causal"]:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -math.inf)
    lse = scores.logsumexp(-1)
    seen = (lse > -math.inf).unsqueeze(-1)
    p = torch.where(seen, scores, 0.0).softmax(-1) * seen
    p = p if kept is None else p * kept
    return p @ v.repeat_interleave(each, 1), torch.where(seen.squeeze(-1), lse, float(MOST))


def run(kind, q, k, v, g, attrs, more=(), views=None, **change):
    """Runs the forward and the gradient node, with a choice if there is one."""
    want_caps, choice = (caps(kind, **{n: c for n, c in change.items() if n != "choice"}), (change.get("choice")))
    (b, h, n, d), groups, s, e = q.shape, k.shape[1], k.shape[2], v.shape[3]
    arrays = [x.detach().float().numpy() for x in (q, k, v)]
    more = [np.asarray(x) for x in more]

    def node(op, lower, inputs, shapes):
        look = None if views is None else [*[None] * (len(inputs) - len(views)), *views]
        graph, data = make(op, inputs, look, [(shape, "f32") for shape in shapes], attrs)
        return run_node(lambda *a: lower(*a, *([choice] if choice else ())), graph, data, want_caps)

    out, lse = node("attention", lower_attention, [*arrays, *more], [(b, n, h, e), (b, h, n)])
    got = node(
        "attention_grad",
        lower_attention_grad,
        [g.float().numpy(), *arrays, np.ascontiguousarray(out.transpose(0, 2, 1, 3)), lse, *more],
        [(b, n, h, d), (b, s, groups, d), (b, s, groups, e)],
    )
    return [out, *got], lse


def compare(kind, sizes, attrs, mask=None, kept=None, more=(), limit=2e-6, **change):
    b, h, groups, n, s, d, e = sizes
    torch.manual_seed(1)
    q, k, v, g = draw(b, h, n, d), draw(b, groups, s, d), draw(b, groups, s, e), draw(b, h, n, e)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out, lse = by_hand(q, k, v, attrs, mask, kept)
    want = [out.detach(), *torch.autograd.grad(out, (q, k, v), g)]
    got, rows = run(kind, q, k, v, g, attrs, more, **change)
    assert error(rows, lse.detach().numpy()) < limit
    for name, mine, theirs in zip(("out", "dq", "dk", "dv"), got, want, strict=True):
        scale = max(float(theirs.norm()), 1e-3)  # With one key, dq and dk are zero.
        gap = np.linalg.norm(mine.transpose(0, 2, 1, 3) - theirs.numpy())
        assert gap / scale < limit, (name, gap / scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients(sizes, causal, kind):
    compare(kind, sizes, {**PLAIN, "causal": causal})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["float", "bool", "inf"])
def test_masks(how, kind):
    """Some rows see no key, and a whole block of keys is hidden."""
    b, h, n, s = 2, 2, 37, 150
    torch.manual_seed(2)
    mask = torch.rand(b, h, n, s) > 0.3
    mask[:, :, 5], mask[:, :, :, 64:128] = False, False
    if how == "float":
        mask = draw(b, h, n, s)
    elif how == "inf":
        mask = torch.zeros(b, h, n, s, dtype=torch.float64).masked_fill(~mask, -math.inf)
    array = mask.numpy() if how == "bool" else mask.float().numpy()
    compare(kind, (b, h, 1, n, s, 24, 24), {**PLAIN, "masked": True}, mask, more=[array])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["keys", "rows", "turned"])
def test_masks_that_are_spread(form, kind):
    """One mask is broadcast over all rows, all heads or, transposed, all batches."""
    b, h, n, s = 2, 3, 19, 21
    torch.manual_seed(3)
    stored, strides = {
        "keys": ((b, s), (s, 0, 0, 1)),
        "rows": ((b, n), (n, 0, 1, 0)),
        "turned": ((s, n), (0, 0, 1, n)),
    }[form]
    array = draw(*stored).float().numpy()
    mask = torch.from_numpy(array).double().as_strided((b, h, n, s), strides)
    compare(
        kind,
        (b, h, h, n, s, 8, 8),
        {**PLAIN, "masked": True},
        mask,
        more=[array],
        views=[lambda t: View(t.id, (b, h, n, s), strides)],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_what_the_graph_s_random_numbers_say(causal, kind):
    b, h, n, s, p = 2, 2, 35, 70, 0.4
    attrs = {**PLAIN, "causal": causal, "dropout": p, "key": 12345}
    seed, step = np.array(7, np.int32), np.array(3, np.int32)
    from handheld.backends.reference.attention import _kept

    rest = [torch.from_numpy(seed), torch.from_numpy(step)]
    kept = _kept(attrs, torch.zeros(b, h, n, s, dtype=torch.float64), rest)
    assert 0.5 < float((kept > 0).double().mean()) < 0.7
    compare(kind, (b, h, h, n, s, 16, 16), attrs, kept=kept, more=[seed, step])


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_any_strides(kind):
    """Queries, keys and values are views of one tensor [b, l, 3, h, d], also with columns before rows."""
    b, h, n, d = 2, 3, 21, 12
    torch.manual_seed(4)
    whole = draw(b, n, 3, h, d)
    q, k, v = whole.permute(2, 0, 3, 1, 4).unbind(0)
    want, lse = by_hand(q, k, v, PLAIN)
    strides = (n * 3 * h * d, d, 3 * h * d, 1)
    views = [lambda t, i=i: View(t.id, (b, h, n, d), strides, i * h * d) for i in range(3)]
    graph, data = make(
        "attention", [whole.float().numpy()] * 3, views, [((b, n, h, d), "f32"), ((b, h, n), "f32")], PLAIN
    )
    out, rows = run_node(lower_attention, graph, data, caps(kind))
    assert error(out.transpose(0, 2, 1, 3), want.numpy()) < 2e-6 and error(rows, lse.numpy()) < 2e-6
    turned = k.transpose(-1, -2).contiguous()
    views[1] = lambda t: View(t.id, (b, h, n, d), (h * n * d, n * d, 1, n))
    graph, data = make(
        "attention",
        [x.float().numpy() for x in (whole, turned, whole)],
        views,
        [((b, n, h, d), "f32"), ((b, h, n), "f32")],
        PLAIN,
    )
    again, _ = run_node(lower_attention, graph, data, caps(kind))
    assert np.array_equal(again, out)


@pytest.mark.parametrize("kind", KINDS)
def test_large_scores_do_not_overflow(kind):
    compare(kind, (1, 2, 2, 33, 65, 16, 16), {**PLAIN, "scale": 60.0}, limit=2e-4)


def test_few_heads_on_a_cpu_share_their_keys_out():
    """Keys are split into parts, each with its own dq, also if the first rows see no key of a part."""
    for causal in (False, True):
        compare("cpu", (1, 2, 1, 100, 200, 8, 8), {**PLAIN, "causal": causal}, compute_units=8)
    lowered = _lowered("cpu", (1, 1, 1, 100, 200, 8, 8), grad=True, compute_units=8)
    assert [launch.kernel for launch in lowered.launches] == ["attention_grad", "attention_sum"]


def _graph(sizes, grad: bool = False) -> Graph:
    b, h, groups, n, s, d, e = sizes
    q, k, v = (b, h, n, d), (b, groups, s, d), (b, groups, s, e)
    g = (b, h, n, e)
    shapes = [g, q, k, v, g, (b, h, n)] if grad else [q, k, v]
    made = [(b, n, h, d), (b, s, groups, d), (b, s, groups, e)] if grad else [(b, n, h, e), (b, h, n)]
    arrays = [np.zeros(shape, np.float32) for shape in shapes]
    name = "attention_grad" if grad else "attention"
    return make(name, arrays, None, [(shape, "f32") for shape in made], PLAIN)[0]


def _lowered(kind, sizes, grad=False, **change):
    graph = _graph(sizes, grad)
    lower = lower_attention_grad if grad else lower_attention
    return lower(graph.nodes[0], graph, caps(kind, **change))


@pytest.mark.parametrize("kind", KINDS)
def test_no_matrix_of_queries_by_keys_is_kept(kind):
    for grad in (False, True):
        lowered = _lowered(kind, (2, 4, 4, 1024, 1024, 64, 64), grad)
        assert sum(lowered.workspace) <= 4 * 2 * 4 * 1024


@pytest.mark.parametrize("items, local", [(1, 16), (8, 16), (128, 16), (512, 48)])
def test_small_and_large_devices(items, local):
    """Work-groups from one item to the largest useful size, and little local memory (KiB)."""
    for sizes in ((1, 2, 1, 21, 37, 24, 40), (1, 1, 1, 5, 9, 256, 3)):
        compare("gpu", sizes, {**PLAIN, "causal": True}, max_work_group=items, local_mem_bytes=local << 10)


def test_every_choice_computes_the_same(request):
    sizes = (1, 2, 1, 21, 37, 24, 40)
    graph = _graph(sizes)
    offered = candidates(graph.nodes[0], graph, caps("gpu"))
    assert len(offered) > 3 and candidates(graph.nodes[0], graph, caps("cpu")) == ()
    if not request.config.getoption("--all-cases"):
        offered = random.Random(0).sample(offered, 4)
    for choice in offered:
        compare("gpu", sizes, PLAIN, choice=choice)
    with pytest.raises(PlanError, match="no work-group"):
        lower_attention(graph.nodes[0], graph, caps("gpu"), {"WX": 16, "WY": 512})


def test_too_little_local_memory_is_an_error():
    with pytest.raises(PlanError, match="local memory"):
        _lowered("gpu", (1, 1, 1, 8, 8, 64, 64), local_mem_bytes=256)


def test_flops():
    sizes = b, h, _, n, s, d, e = (2, 4, 2, 5, 7, 8, 6)
    forward, backward = _graph(sizes), _graph(sizes, grad=True)
    assert flops(forward.nodes[0], forward) == 2 * b * h * n * s * (d + e)
    assert flops(backward.nodes[0], backward) == 2 * b * h * n * s * (3 * d + 2 * e)


def test_empty():
    graph = _graph((0, 2, 2, 5, 7, 4, 4))
    assert lower_attention(graph.nodes[0], graph, caps("cpu")).launches == ()


@pytest.mark.parametrize(
    "parts", [("math.cl", "wide.cl", "attention.cl", "attention_register.cl"), ("attention.cl", "attention_local.cl")]
)
def test_the_files_compile_alone(parts):
    from helpers.harness import queue

    cl.Program(queue().context, "".join(map(read_cl, parts))).build(["-w"])


def test_shapes_follow_the_device():
    """A large GPU first gets enough work-groups; otherwise work-groups are as large as useful."""
    graph = _graph((16, 4, 4, 128, 128, 64, 64))
    large = caps("gpu", max_work_group=1024, local_mem_bytes=48 << 10, compute_units=132)
    first = candidates(graph.nodes[0], graph, large)[0]
    assert first == {"WX": 16, "WY": 8}
    assert candidates(graph.nodes[0], graph, replace(large, compute_units=8))[0] == {"WX": 16, "WY": 16}
    assert attention.KT == 16
