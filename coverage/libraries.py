"""The table of libraries and their models."""

from __future__ import annotations

from collections.abc import Iterable

import huggingface
import plain
import pytorchcv_models
import timm_models
from family import Family

LIBRARIES: dict[str, list[Family]] = {
    "plain": plain.FAMILIES,
    "huggingface": huggingface.FAMILIES,
    "timm": timm_models.FAMILIES,
    "pytorchcv": pytorchcv_models.FAMILIES,
}


def families(libraries: Iterable[str] = ()) -> list[Family]:
    """All models of the named libraries, or of all. A model imports its library only when it is built."""
    return [family for library in libraries or LIBRARIES for family in LIBRARIES[library]]
