"""The ops limited by memory that bench/kernels.py times, next to the contractions.

A row is a function of tensors that PyTorch runs directly and Handheld captures. An op and its gradient
are two rows. The shapes are those of the suite, and larger ones for a GPU whose cache holds the suite's.
The bytes of a row are what its function must read and write, each tensor once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from workloads import Entry, captured, chosen, single

from handheld.frontend.capture import Capture
from handheld.graph.graph import Graph, Node
from handheld.graph.program import REDUCTIONS
from handheld.kernels.loops import Body
from handheld.kernels.space import collapse
from handheld.kernels.stages import Stages
from handheld.step import Step

Shape = tuple[int, ...]
aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Stream:
    """The row computes `run(*make())`. `read` is the number of bytes read, where that is not all of the inputs."""

    family: str
    name: str
    make: Callable[[], list[torch.Tensor]]
    run: Callable[..., Any]
    read: int | None = None


@dataclass(frozen=True)
class Update:
    """The optimizer's part of a workload's step, which updates all parameters in a few launches."""

    entry: Entry
    family: str = "optimizer"

    @property
    def name(self) -> str:
        return f"SGD momentum, {self.entry.workload}"


def normal(*shapes: Shape) -> Callable[[], list[torch.Tensor]]:
    def make() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator) for shape in shapes]

    return make


def text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def rows(large: bool) -> list[Stream | Update]:
    """The rows with shapes of the suite; with `large`, also shapes that fit in no cache."""
    images = [(32, 64, 32, 32), (32, 128, 16, 16), (32, 96, 16, 16), (4, 64, 112, 112), (4, 256, 56, 56)]
    tokens = [(2048, 256)]
    hidden = [(2048, 1024)]
    scores = [(8192, 128)]  # 16 * 4 heads * 128 rows
    vocabulary = [(2048, 5000)]
    pools = [((64, 6, 28, 28), 2, 2, 0), ((8, 64, 111, 111), 3, 2, 0), ((4, 64, 112, 112), 3, 2, 1)]
    updates = "aic"
    if large:
        images += [(64, 64, 112, 112), (64, 256, 56, 56)]
        tokens.append((65536, 1024))
        hidden.append((65536, 1024))
        scores.append((262144, 256))
        vocabulary.append((16384, 5000))
        pools.append(((64, 64, 112, 112), 3, 2, 1))
        updates += "V"
    all_rows: list[Stream | Update] = []
    for shape in images:
        all_rows += [*batch_norm(shape)]
    for shape in tokens:
        all_rows += [*layer_norm(shape)]
    for shape in scores:
        all_rows += [*softmax(shape)]
    for shape in vocabulary:
        all_rows += [*cross_entropy(shape)]
    for window in pools:
        all_rows += [*pool(*window)]
    all_rows += [*average((64, 6, 28, 28)), *average((16, 64, 32, 32))]
    for shape in hidden + images[-2:]:
        all_rows += [*pointwise(shape)]
    for shape in hidden + images[:1] + images[-1:]:
        all_rows += [*reductions(shape)]
    for positions, words, width in [(2048, 5000, 256)] + [(65536, 50000, 1024)] * large:
        all_rows += [*embedding(positions, words, width)]
    return all_rows + [Update(entry) for entry in chosen(updates)]


def batch_norm(shape: Shape) -> Iterator[Stream]:
    c, axes = (shape[1],), (0, 2, 3)
    flags = (True, 1e-5, [True, True, True])

    def forward(x: Any, w: Any, b: Any) -> Any:
        return aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)

    def backward(dy: Any, x: Any, w: Any, mean: Any, rstd: Any) -> Any:
        return aten.native_batch_norm_backward(dy, x, w, None, None, mean, rstd, *flags)

    def saved() -> list[torch.Tensor]:
        dy, x, w = normal(shape, shape, c)()
        mean, var = x.mean(axes), x.var(axes, correction=0)
        return [dy, x, w, mean, (var + 1e-5).rsqrt()]

    yield Stream("batch norm", text(shape), normal(shape, c, c), forward)
    yield Stream("batch norm grad", text(shape), saved, backward)


def layer_norm(shape: Shape) -> Iterator[Stream]:
    width = shape[-1:]

    def forward(x: Any, w: Any, b: Any) -> Any:
        return aten.native_layer_norm(x, width, w, b, 1e-5)

    def backward(dy: Any, x: Any, mean: Any, rstd: Any, w: Any, b: Any) -> Any:
        return aten.native_layer_norm_backward(dy, x, width, mean, rstd, w, b, [True] * 3)

    def saved() -> list[torch.Tensor]:
        dy, x, w, b = normal(shape, shape, width, width)()
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
        return [dy, x, mean, (var + 1e-5).rsqrt(), w, b]

    yield Stream("layer norm", text(shape), normal(shape, width, width), forward)
    yield Stream("layer norm grad", text(shape), saved, backward)


def softmax(shape: Shape) -> Iterator[Stream]:
    def saved() -> list[torch.Tensor]:
        dy, x = normal(shape, shape)()
        return [dy, x.softmax(-1)]

    yield Stream("softmax", text(shape), normal(shape), lambda x: aten._softmax(x, -1, False))
    yield Stream(
        "softmax grad", text(shape), saved, lambda dy, y: aten._softmax_backward_data(dy, y, -1, torch.float32)
    )


def cross_entropy(shape: Shape) -> Iterator[Stream]:
    def make() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [*normal(shape)(), torch.randint(shape[1], shape[:1], generator=generator)]

    def both(x: Any, target: Any) -> Any:
        """The loss and its gradient with respect to x, as in a step."""
        logs = aten._log_softmax(x, 1, False)
        loss, total = aten.nll_loss_forward(logs, target, None, 1, -100)
        dlogs = aten.nll_loss_backward(torch.ones_like(loss), logs, target, None, 1, -100, total)
        return loss, aten._log_softmax_backward_data(dlogs, logs, 1, torch.float32)

    yield Stream("cross entropy", text(shape), make, F.cross_entropy)
    yield Stream("cross entropy grad", text(shape), make, both)


def pool(shape: Shape, kernel: int, stride: int, padding: int) -> Iterator[Stream]:
    window = ([kernel] * 2, [stride] * 2, [padding] * 2)
    name = f"{text(shape)} {kernel}/{stride}"

    def forward(x: Any) -> Any:
        return aten.max_pool2d_with_indices(x, *window)

    def backward(dy: Any, x: Any, index: Any) -> Any:
        return aten.max_pool2d_with_indices_backward(dy, x, *window, [1, 1], False, index)

    def saved() -> list[torch.Tensor]:
        (x,) = normal(shape)()
        y, index = forward(x)
        return [torch.randn_like(y), x, index]

    windows = math.prod((s + 2 * padding - kernel) // stride + 1 for s in shape[2:])
    yield Stream("max pool", name, normal(shape), forward)
    yield Stream(
        "max pool grad", name, saved, backward, read=8 * shape[0] * shape[1] * windows
    )  # Only the shape of x is read.


def average(shape: Shape) -> Iterator[Stream]:
    window = ([2, 2], [2, 2], [0, 0], False, True, None)
    out = (*shape[:2], shape[2] // 2, shape[3] // 2)

    def backward(dy: Any, x: Any) -> Any:
        return aten.avg_pool2d_backward(dy, x, *window)

    yield Stream("avg pool", f"{text(shape)} 2/2", normal(shape), lambda x: aten.avg_pool2d(x, *window))
    yield Stream("avg pool grad", f"{text(shape)} 2/2", normal(out, shape), backward, read=4 * math.prod(out))


def pointwise(shape: Shape) -> Iterator[Stream]:
    yield Stream("pointwise", f"{text(shape)} relu", normal(shape), torch.relu)
    yield Stream("pointwise", f"{text(shape)} add relu", normal(shape, shape), lambda x, y: torch.relu(x + y))
    if len(shape) == 2:
        yield Stream("pointwise", f"{text(shape)} gelu", normal(shape), F.gelu)
        yield Stream("pointwise", f"{text(shape)} gelu grad", normal(shape, shape), aten.gelu_backward)


def reductions(shape: Shape) -> Iterator[Stream]:
    if len(shape) == 2:
        yield Stream("reduction", f"{text(shape)} sum of columns", normal(shape), lambda x: x.sum(0))
        yield Stream("reduction", f"{text(shape)} sum of rows", normal(shape), lambda x: x.sum(1))
        return
    yield Stream("reduction", f"{text(shape)} sum of channels", normal(shape), lambda x: x.sum((0, 2, 3)))
    yield Stream("reduction", f"{text(shape)} mean of planes", normal(shape), lambda x: x.mean((2, 3)))


def embedding(positions: int, words: int, width: int) -> Iterator[Stream]:
    name = f"{positions} of {words}x{width}"

    def index() -> torch.Tensor:
        generator = torch.Generator().manual_seed(2)
        return torch.randint(words, (positions,), generator=generator)

    yield Stream(
        "embedding",
        name,
        lambda: [*normal((words, width))(), index()],
        aten.embedding,
        read=4 * positions * (width + 1),
    )
    yield Stream(
        "embedding grad",
        name,
        lambda: [*normal((positions, width))(), index()],
        lambda dy, at: aten.embedding_dense_backward(dy, at, words, -1, False),
    )


# ---------------------------------------------------------------------------------- as graphs


def step_of(row: Stream | Update, tensors: list[torch.Tensor]) -> tuple[Step, str]:
    """A captured step and the name of its graph."""
    if isinstance(row, Update):
        return captured(row.entry)[0], "train"

    def closure(batch: list[torch.Tensor]) -> Any:
        return None, {str(i): t for i, t in enumerate(outputs(row.run(*batch)))}

    return Capture(nn.Module()).evaluate(closure, tensors, "row").step(), "row"


def outputs(result: Any) -> list[torch.Tensor]:
    """The tensors that an op really computes: PyTorch also returns None or empty tensors as placeholders."""
    tensors = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in tensors if t is not None and t.numel()]


def pytorch_update(row: Update, where: str) -> tuple[Callable[[], Any], int]:
    """`optimizer.step` with constant gradients, and the number of parameters."""
    model, _, optimizer, _ = single(row.entry)
    model.to(where)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer.step, sum(p.numel() for p in model.parameters())


def extra_walks(node: Node, graph: Graph) -> int:
    """Bytes that a reduction must read again, because it needs a result of its first pass over them."""
    if node.op != "reduce":
        return 0
    body = Body(node, graph, collapse(node, graph))
    stages = Stages(body)
    program = body.program
    ends = [
        [a for i, n in enumerate(program) if n.op in REDUCTIONS and stages.stage[i] == s for a in n.args]
        for s in range(1, stages.last + 1)
    ]
    ends.append([store.position for store in node.stores if store.full])
    times: dict[int, int] = {}
    for roots in ends:
        loads = {program[i].params[0] for i in stages.needed(program, roots) if program[i].op == "load"}
        for operand in loads:
            times[operand] = times.get(operand, 0) + 1
    return sum((n - 1) * distinct(node, k, graph) for k, n in times.items())


def distinct(node: Node, operand: int, graph: Graph) -> int:
    """Bytes of a tensor that a view of it reads."""
    view = node.inputs[operand]
    tensor = graph.tensors[view.tensor]
    seen = math.prod(n for n, s in zip(view.shape, view.strides, strict=True) if s)
    return min(seen * tensor.nbytes // max(tensor.size, 1), tensor.nbytes)
