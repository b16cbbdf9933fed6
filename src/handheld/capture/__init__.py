"""PyTorch → Graph. With backends/reference/ and suite/ the only importer of torch.

`handheld.capture` is this package and, because that is how a user calls it, also the function.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from handheld.errors import CaptureError
from handheld.step import Step


def call(
    model: Any,
    loss: Any = None,
    optimizer: Any = None,
    batch: Any = None,
    *,
    modules: Any = None,
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
        import torch  # noqa: F401
    except ImportError as error:
        raise CaptureError(f"capturing a model needs PyTorch ({error}). Try: pip install 'handheld[capture]'") from None
    from handheld.capture.capture import capture

    return capture(
        model,
        loss,
        optimizer,
        batch,
        modules=modules,
        inputs=inputs,
        evaluate=evaluate,
        seed=seed,
        name=name,
        frozen=frozen,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
    )


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Step:
        return call(*args, **options)


call.__name__ = call.__qualname__ = "capture"  # as errors of Python should call it
__signature__ = inspect.signature(call)
sys.modules[__name__].__class__ = _Callable
