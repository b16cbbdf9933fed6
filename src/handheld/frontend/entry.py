"""The function `handheld.capture`. PyTorch is imported when it is called, not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from handheld.errors import CaptureError
from handheld.step import Step

if TYPE_CHECKING:
    import torch
    from torch import nn


def capture(
    model: nn.Module | Callable[[Any], Any],
    loss: Callable[..., torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    batch: Any = None,
    *,
    modules: nn.Module | Mapping[str, nn.Module] | None = None,
    inputs: int = 1,
    evaluate: bool = True,
    seed: int = 0,
    name: str = "",
    frozen: str = "warn",
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
) -> Step:
    """Captures a training step, an evaluation pass and a prediction.

    `model` is an nn.Module and `loss(output, *targets)` a scalar; the first `inputs` tensors of
    `batch` go to the model and the rest to the loss. A batch that is a dictionary goes to the model
    by name, and a model without `loss` returns it, or has it as `.loss`. Or `model` is a closure
    `fn(batch) -> loss` or `(loss, outputs)` over `modules`. Without an optimizer only the last two
    graphs are captured, with `evaluate=False` only the first.

    Gradients are clipped by their common norm (`clip_norm`) or each by its size (`clip_value`); the
    mean gradient of `accumulate` batches makes one update. `seed` is that of dropout and its like.
    Python code that reads a tensor's value (`if x.sum() > 0`) runs once, here: `frozen` says what
    follows, `warn` (with the line of code), `error` or `accept`.
    """
    try:
        from torch import nn
    except ImportError as error:
        raise CaptureError(f"capturing a model needs PyTorch ({error}). Try: pip install 'handheld[capture]'") from None
    from handheld.frontend import arguments
    from handheld.frontend.capture import Capture, closure

    arguments.check_model(model, modules)
    arguments.check_loss(loss)
    arguments.check_batch(batch, inputs)
    arguments.check_frozen(frozen)
    module = model if isinstance(model, nn.Module) else None
    builder = Capture(modules if module is None else module, seed)  # type: ignore[arg-type]  # checked above
    fn = model if module is None else closure(module, loss, inputs)
    if optimizer is not None:
        builder.train(fn, optimizer, batch, clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate)
    if evaluate:
        builder.evaluate(fn, batch)
        if module is not None and isinstance(batch, (tuple, list)):
            builder.evaluate(lambda b: (None, module(*b)), tuple(batch[:inputs]), "predict")
    return builder.step(frozen=frozen, name=name or type(model).__name__)
