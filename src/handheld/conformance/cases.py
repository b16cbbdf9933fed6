"""The op cases: every lowering on prime and awkward shapes.

A case creates a function (or an nn.Module) and its tensors. `check.py` sums the outputs with fixed random
weights into a loss, and compares the outputs and the gradient of every floating-point tensor and parameter
with PyTorch in float64.
"""

from __future__ import annotations

from handheld.conformance.case import Case, collect
from handheld.conformance.complex_numbers import complex_cases
from handheld.conformance.images import image_cases
from handheld.conformance.index import index_cases
from handheld.conformance.layers import layer_cases
from handheld.conformance.linalg import linalg_cases
from handheld.conformance.pointwise import pointwise_cases
from handheld.conformance.reduce import reduce_cases
from handheld.conformance.sequences import sequence_cases

CASES: dict[str, Case] = collect(
    pointwise_cases(),
    reduce_cases(),
    layer_cases(),
    sequence_cases(),
    image_cases(),
    index_cases(),
    complex_cases(),
    linalg_cases(),
)
