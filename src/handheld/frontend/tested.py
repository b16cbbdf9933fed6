"""The versions of PyTorch that capture was tested with, and a warning for other versions."""

from __future__ import annotations

import re
from functools import cache

import torch

from handheld.callers import warn_user

#: The oldest (major, minor) version that the package supports, and the newest that passed the tests.
TESTED = ((2, 9), (2, 15))


@cache
def warn_untested() -> None:
    """Warns once per process if this PyTorch is outside TESTED. An unreadable version counts as untested."""
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if numbers and TESTED[0] <= (int(numbers[1]), int(numbers[2])) <= TESTED[1]:
        return
    first, last = (".".join(map(str, version)) for version in TESTED)
    warn_user(
        f"PyTorch {torch.__version__} was not tested with this Handheld, which supports {first} to {last}. "
        "Try: handheld verify, which compares every op of your model with PyTorch"
    )
