"""The op cases: every lowering on prime and awkward shapes, for tests and benchmarks.

A case makes a function (or an nn.Module) and its tensors. What the harness (tests/casework.py) does
with it: outputs are summed with fixed random weights into a loss; outputs and the gradient of every
floating-point tensor and parameter are compared with PyTorch in float64.
"""

from __future__ import annotations

from case import Case, collect
from cases_complex import complex_cases
from cases_images import image_cases
from cases_index import index_cases
from cases_layers import layer_cases
from cases_linalg import linalg_cases
from cases_pointwise import pointwise_cases
from cases_reduce import reduce_cases

CASES: dict[str, Case] = collect(
    pointwise_cases(), reduce_cases(), layer_cases(), image_cases(), index_cases(), complex_cases(), linalg_cases()
)
