"""Which libraries there are models of, and the models of each."""

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
    """All models of the libraries, of all libraries if none is named. A model imports its library when it is made."""
    return [family for library in libraries or LIBRARIES for family in LIBRARIES[library]]
