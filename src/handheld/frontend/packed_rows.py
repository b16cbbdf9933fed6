"""Stands for `PackedSequence.data` while a step is recorded: the rows of all sequences, with padding between them.

In PyTorch the number of rows is the sum of the lengths. Here padded rows are kept, and what a model does with the
rows is done with all of them. Functions that treat each row alone (linear, embedding, dropout, activations) need no
more. Losses and sums leave the padded rows out. Everything else would mix padding into a result, so it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F

from handheld.errors import CaptureError
from handheld.frontend.reading import origin, user_line

if TYPE_CHECKING:
    from handheld.frontend.packed import Lengths

T = torch.Tensor

#: Functions of one row and of whole weights.
_WITH_WEIGHTS = frozenset({F.linear, F.embedding, F.layer_norm, F.dropout})
#: Functions of each element. Another tensor must not have the dimension of the rows.
_ELEMENTWISE = frozenset(
    {torch.relu, F.relu, torch.tanh, torch.sigmoid, F.gelu, F.leaky_relu, F.elu, F.silu, F.logsigmoid, F.softplus}
    | {torch.add, torch.sub, torch.mul, torch.div, torch.neg, torch.exp, torch.log, torch.eq, torch.ne}
)
#: Functions along a dimension, which must not be that of the rows.
_ALONG = frozenset({F.softmax, F.log_softmax, torch.softmax, torch.log_softmax, torch.argmax})
#: Losses whose targets are classes, and losses of each element.
_CLASSES = frozenset({F.cross_entropy, F.nll_loss})
_LOSSES = frozenset(
    {F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits}
)


def _operator(function: Callable[..., Any]) -> Callable[[Rows, object], Rows]:
    def operate(self: Rows, other: object) -> Rows:
        result: Rows = Rows.__torch_function__(function, (), (self, other))
        return result

    return operate


class Rows:
    """The rows of a packed sequence: `padded` [steps, batch, ...] and the lengths."""

    def __init__(self, padded: T, lengths: Lengths) -> None:
        self.padded, self.lengths = padded, lengths

    __add__, __mul__ = _operator(torch.add), _operator(torch.mul)
    __sub__, __truediv__ = _operator(torch.sub), _operator(torch.div)
    __radd__, __rmul__ = __add__, __mul__

    @property
    def dtype(self) -> torch.dtype:
        return self.padded.dtype

    @property
    def device(self) -> torch.device:
        return self.padded.device

    @property
    def is_cuda(self) -> bool:
        return False

    def dim(self) -> int:
        return self.padded.dim() - 1

    def size(self, dim: int | None = None) -> int:
        if dim is None or dim % self.dim() == 0:
            self._refuse("its number of rows")
        return self.padded.size(dim % self.dim() + 1)

    def to(self, *args: Any, **options: Any) -> Rows:
        same = self.padded.to(*args, **options)
        return self if same is self.padded else Rows(same, self.lengths)

    def sum(self) -> T:
        return self.lengths.keep(self.padded, 0).sum()

    def mean(self) -> T:
        return self.sum() / self._count()

    def argmax(self, dim: int) -> Rows:
        rows: Rows = self.__torch_function__(torch.argmax, (), (self, dim))
        return rows

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(name)

    def _refuse(self, what: str) -> NoReturn:
        raise CaptureError(
            f"{user_line()}: the data of a packed sequence has as many rows as the lengths of the batch add up to, and "
            f"the shapes of a graph are fixed, so {what} cannot be recorded. Layers of single rows (Linear, Embedding, "
            "Dropout, activations), losses and sums can. Try: pad_packed_sequence, and multiply by the mask "
            "torch.arange(steps) < lengths[:, None]"
        )

    def _count(self) -> T:
        """The number of elements of all rows that belong to a sequence."""
        return self.lengths.valid.sum() * self.padded[0, 0].numel()

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Applies a PyTorch function. PyTorch calls this for every function that gets an object of this class."""
        options = dict(options or {})
        first = next(a for a in (*args, *options.values()) if isinstance(a, Rows))
        name = getattr(function, "__name__", str(function))
        if any(isinstance(a, Rows) and a.lengths is not first.lengths for a in args):
            args = [first._alike(a, name) if isinstance(a, Rows) else a for a in args]
        if function in _CLASSES or function in _LOSSES:
            return first._loss(function, args, options)
        if function in _ELEMENTWISE:
            if any(isinstance(a, T) and a.dim() >= first.dim() for a in args):
                first._refuse(f"{name} with a tensor of rows")
        elif function in _ALONG:
            dim = options.get("dim", args[1] if len(args) > 1 else None)
            if dim is None or dim % first.dim() == 0:
                first._refuse(f"{name} along the rows")
        elif function not in _WITH_WEIGHTS:
            first._refuse(name)
        return first._wrap(function(*_flat(args), **dict(zip(options, _flat(list(options.values())), strict=True))))

    def _alike(self, other: Rows, name: str) -> Rows:
        """Returns rows of another packing if it has the same lengths."""
        rec = self.lengths.rec
        ours, theirs = (origin(rec, rec.read(rows.lengths.lengths).tensor) for rows in (self, other))
        if ours != theirs or other.padded.shape[:2] != self.padded.shape[:2]:
            self._refuse(f"{name} of two packed sequences with different lengths")
        return other

    def _wrap(self, rows: T) -> Rows:
        return Rows(rows.reshape(*self.padded.shape[:2], *rows.shape[1:]), self.lengths)

    def _loss(self, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Computes a loss over the rows that belong to a sequence."""
        inputs = [options.pop(key) for key in ("input", "target") if key in options]
        x, target = (*args, *inputs)[:2]
        if not isinstance(x, Rows) or not isinstance(target, Rows) or len(args) > 2:
            self._refuse(f"{function.__name__} of rows and other tensors")
        reduction = options.get("reduction", "mean")
        if function in _CLASSES and not target.dtype.is_floating_point and reduction != "none":
            ignored = self.lengths.keep(target.padded, options.get("ignore_index", -100))
            return function(*_flat([x, Rows(ignored, self.lengths)]), **options)
        each = self._wrap(function(*_flat([x, target]), **{**options, "reduction": "none"}))
        return each if reduction == "none" else each.sum() if reduction == "sum" else each.mean()


def _flat(args: Sequence[Any]) -> list[Any]:
    return [a.padded.flatten(0, 1) if isinstance(a, Rows) else a for a in args]
