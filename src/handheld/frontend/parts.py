"""Whether a batch can be computed in parts: is the loss a mean or a sum over samples, and does a norm see them all?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from handheld.errors import CaptureError
from handheld.frontend.closures import loss_and_outputs

if TYPE_CHECKING:
    from handheld.frontend.capture import Capture
    from handheld.frontend.sizes import Recipe

#: The relative difference of two losses that are the same except for rounding.
CLOSE = 1e-4


def batch_norms(recipe: Recipe) -> int:
    """The number of batch norms that use the statistics of the batch."""
    return sum(isinstance(module, _BatchNorm) and training for module, training in recipe.modes.items())


def kind_of_loss(builder: Capture, recipe: Recipe) -> str:
    """ "mean" or "sum": how the losses of parts make the loss of a batch. Raises CaptureError if they do not.

    It is tried with four different samples in PyTorch, in eval mode, because random numbers and the statistics of batch
    norms are another question.
    """
    from handheld.frontend.sizes import resized

    batch = resized(recipe.batch, 4)
    with builder._eval_mode(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            whole = _loss(recipe, _varied(batch))
            parts = [_loss(recipe, _varied(batch, low, high)) for low, high in ((0, 1), (1, 4))]
        except Exception as error:  # The user's code may raise anything.
            first_line = str(error).strip().partition("\n")[0]
            raise CaptureError(f"its code does not run with parts of a batch: {first_line}") from error
    if _same(whole, 0.25 * parts[0] + 0.75 * parts[1]):
        return "mean"
    if _same(whole, parts[0] + parts[1]):
        return "sum"
    raise CaptureError("its loss is neither a mean nor a sum over samples")


def _loss(recipe: Recipe, batch: object) -> float:
    loss, _ = loss_and_outputs(recipe.fn(batch), True)
    return float(loss)


def _varied(batch: object, low: int = 0, high: int = 4) -> object:
    """Samples low … high - 1 of four samples, whose numbers have different sizes."""
    from handheld.frontend.sizes import leaves_of

    def one(leaf: Any, batched: bool) -> Any:
        leaf = torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf
        if not batched:
            return leaf
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            factors = torch.tensor([1.0, 0.5, 0.75, 0.25], dtype=leaf.dtype)
            leaf = leaf.detach() * factors.reshape(4, *[1] * (leaf.ndim - 1))
        return leaf[low:high]

    return leaves_of(batch, one)


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(abs(a), abs(b), 1e-3)
