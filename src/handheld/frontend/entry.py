"""The function `handheld.capture`. It imports PyTorch only when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from handheld.errors import CaptureError
from handheld.step import Step, uncompiled

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
    """Captures a training step, an evaluation pass and a prediction, as three graphs of one Step.

    The usual call passes an nn.Module as `model` and a function `loss(output, *targets)` that returns a scalar.
    The first `inputs` tensors of `batch` go to the model, the rest to the loss. A batch that is a dictionary goes
    to the model as keyword arguments; with `loss`, those that the model does not take go to the loss. Without
    `loss`, the model returns the loss itself or an object with `.loss`; the prediction then leaves out `labels`.
    Alternatively, `model` is a closure `fn(batch)` over `modules`, which returns `loss` or `(loss, outputs)`.

    Without `optimizer`, no training step is captured. With `evaluate=False`, only the training step is captured.

    `clip_norm` limits the joint norm of all gradients, `clip_value` limits every element of a gradient. With
    `accumulate`, one update uses the mean gradient of that many batches. `seed` starts the random numbers of
    dropout and other random ops.

    Python code that reads the value of a tensor (`if x.sum() > 0`) runs only once, during the capture. `frozen`
    says what to do about it: `warn` (and name the line of code), `error` or `accept`.
    """
    try:
        from torch import nn
    except ImportError as error:
        raise CaptureError(f"capturing a model needs PyTorch ({error}). Try: pip install torch") from None
    from handheld.frontend import arguments
    from handheld.frontend.capture import Capture
    from handheld.frontend.closures import closure, plain_batch
    from handheld.frontend.predict import record_prediction

    arguments.check_model(model, modules)
    arguments.check_loss(loss)
    module = uncompiled(model) if isinstance(model, nn.Module) else None
    batch = plain_batch(module, batch)
    arguments.check_batch(batch, inputs)
    arguments.check_frozen(frozen)
    builder = Capture(modules if module is None else module, seed)  # type: ignore[arg-type]  # checked above
    fn = model if module is None else closure(module, loss, inputs)
    if optimizer is not None:
        builder.train(fn, optimizer, batch, clip_norm=clip_norm, clip_value=clip_value, accumulate=accumulate)
    if evaluate:
        builder.evaluate(fn, batch)
        if module is not None:
            record_prediction(builder, module, batch, loss is not None, inputs)
    return builder.step(frozen=frozen, name=name or type(model).__name__)
