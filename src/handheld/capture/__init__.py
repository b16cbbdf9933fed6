"""PyTorch → Graph. With backends/torch*.py and suite/ the only importer of torch.

`handheld.capture` is this package and, because that is how a user calls it, also the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from handheld.errors import CaptureError


def call(*args: Any, **options: Any) -> Any:
    """handheld.capture(model, loss, optimizer, batch): see capture/capture.py."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise CaptureError(
            f"capturing a model needs PyTorch ({error}). Try: pip install 'handheld[capture]'"
        ) from None
    from handheld.capture.capture import capture

    return capture(*args, **options)


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return call(*args, **options)


sys.modules[__name__].__class__ = _Callable
