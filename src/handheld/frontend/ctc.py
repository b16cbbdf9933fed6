"""Records F.ctc_loss and nn.CTCLoss as one op with its own gradient.

The lengths are tensors of the graph and may change with every step. Targets that follow each other in one dimension
become a padded matrix first, by an index that is computed from their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from handheld.errors import CaptureError
from handheld.frontend.reading import note_numbers, user_line
from handheld.frontend.record import Recorder
from handheld.frontend.registry import lowering
from handheld.graph.dtypes import F32

T = torch.Tensor
#: What PyTorch takes as lengths.
Given = T | Sequence[int]

_NONE, _MEAN = 0, 1


@torch.library.custom_op("handheld::ctc", mutates_args=())
def ctc_op(logp: T, targets: T, input_lengths: T, target_lengths: T, blank: int, most: int) -> T:
    loss: T = torch.ops.aten._ctc_loss.Tensor(logp, targets, input_lengths, target_lengths, blank)[0]
    return loss


@torch.library.custom_op("handheld::ctc_grad", mutates_args=())
def ctc_grad_op(d: T, logp: T, targets: T, input_lengths: T, target_lengths: T, blank: int, zero_infinity: bool) -> T:
    args = logp, targets, input_lengths, target_lengths
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(*args, blank)
    grad: T = torch.ops.aten._ctc_loss_backward.Tensor(d, *args, loss, alpha, blank, zero_infinity)
    return grad


@ctc_op.register_fake
def _(logp: T, targets: T, input_lengths: T, target_lengths: T, blank: int, most: int) -> T:
    return logp.new_empty(logp.shape[1])


@ctc_grad_op.register_fake
def _(d: T, logp: T, targets: T, input_lengths: T, target_lengths: T, blank: int, zero_infinity: bool) -> T:
    return torch.empty_like(logp)


@lowering("handheld.ctc.default")
def ctc(rec: Recorder, out: T, logp: T, targets: T, input_lengths: T, target_lengths: T, blank: int, most: int) -> None:
    """`most` is the number of targets that a sample can have."""
    for lengths, name in ((input_lengths, "input"), (target_lengths, "target")):
        note_numbers(rec, lengths, f"the {name} lengths")
    rec.note_range(input_lengths, 0, logp.shape[0] + 1)
    rec.note_range(target_lengths, 0, most + 1)
    inputs = [rec.contiguous(rec.read(t)) for t in (logp, targets, input_lengths, target_lengths)]
    rec.bind(out, rec.dense(rec.emit("ctc", inputs, [(tuple(out.shape), F32)], {"blank": blank})[0]))


@lowering("handheld.ctc_grad.default")
def ctc_grad(rec: Recorder, out: T, *args: Any) -> None:
    *tensors, blank, zero_infinity = args
    inputs = [rec.contiguous(rec.read(t)) for t in tensors]
    attrs = {"blank": blank, "zero_infinity": zero_infinity}
    rec.bind(out, rec.dense(rec.emit("ctc_grad", inputs, [(tuple(out.shape), F32)], attrs)[0]))


class _Ctc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logp: T, targets: T, inputs: T, labels: T, blank: int, most: int, zero_infinity: bool) -> T:
        ctx.save_for_backward(logp, targets, inputs, labels)
        ctx.options = blank, zero_infinity
        loss: T = torch.ops.handheld.ctc(logp, targets, inputs, labels, blank, most)
        return loss

    @staticmethod
    def backward(ctx: Any, d: T) -> Any:
        return torch.ops.handheld.ctc_grad(d, *ctx.saved_tensors, *ctx.options), None, None, None, None, None, None


def _as_tensor(lengths: Given | int, samples: int, name: str) -> T:
    tensor = lengths if isinstance(lengths, T) else torch.tensor(lengths, dtype=torch.int64)
    tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor
    if tuple(tensor.shape) != (samples,):
        raise CaptureError(
            f"{user_line()}: ctc_loss got {name}_lengths of shape {list(tensor.shape)} for {samples} samples. "
            f"Try: one length per sample, and log_probs as [steps, samples, classes]"
        )
    return tensor.to(torch.int64)


def _padded(targets: T, lengths: T, steps: int) -> T:
    """Returns targets that follow each other as [samples, labels]. A target longer than the steps has no alignment, so
    one more place than steps is enough. Lengths that add up to more than there is give -1, which is no class."""
    most = min(targets.shape[0], steps + 1)
    if most == 0:
        return targets.new_zeros(lengths.shape[0], 0)
    starts = lengths.cumsum(0) - lengths
    places = starts.unsqueeze(1) + torch.arange(most).unsqueeze(0)
    return torch.where(places < targets.shape[0], targets[places.clamp(max=targets.shape[0] - 1)], -1)


def whole(original: Callable[..., T]) -> Callable[..., T]:
    """Returns the replacement of torch.ctc_loss."""

    def ctc_loss(
        log_probs: T,
        targets: T,
        input_lengths: Given,
        target_lengths: Given,
        blank: int = 0,
        reduction: int = _MEAN,
        zero_infinity: bool = False,
    ) -> T:
        alone = log_probs.dim() == 2
        logp = log_probs.unsqueeze(1) if alone else log_probs
        if logp.dim() != 3 or not logp.is_floating_point():
            raise CaptureError(
                f"{user_line()}: ctc_loss got log_probs of shape {list(log_probs.shape)} and type {log_probs.dtype}. "
                "Try: floats [steps, samples, classes], such as scores.log_softmax(2).transpose(0, 1)"
            )
        steps, samples, classes = logp.shape
        if not 0 <= blank < classes:
            raise CaptureError(f"{user_line()}: blank={blank} is not one of {classes} classes. Try: blank=0")
        inputs = _as_tensor(input_lengths, samples, "input")
        labels = _as_tensor(target_lengths, samples, "target")
        most = targets.shape[-1]
        if targets.dim() == 1:
            targets = targets.unsqueeze(0) if alone else _padded(targets, labels, steps)
        if targets.dim() != 2 or targets.shape[0] != samples:
            raise CaptureError(
                f"{user_line()}: ctc_loss got targets of shape {list(targets.shape)} for {samples} samples. "
                "Try: [samples, labels], padded, or one dimension with all labels after each other"
            )
        loss: T = _Ctc.apply(logp, targets, inputs, labels, blank, most, zero_infinity)  # type: ignore[no-untyped-call]
        if zero_infinity:
            loss = torch.where(loss == torch.inf, 0.0, loss)
        if reduction == _MEAN:
            return (loss / labels.clamp(min=1)).mean()
        if reduction == _NONE:
            return loss.squeeze(0) if alone else loss
        return loss.sum()

    return ctc_loss
