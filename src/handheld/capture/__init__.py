"""PyTorch → Graph. With backends/torch*.py and suite/ the only importer of torch.

`handheld.capture` is this package and, because that is how a user calls it, also the function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from handheld.capture.capture import capture

        return capture(*args, **options)


sys.modules[__name__].__class__ = _Callable
