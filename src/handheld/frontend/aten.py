"""The types of what PyTorch passes to an op: the vocabulary of the lowerings' signatures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: one number for all dimensions, or one for each: `IntArrayRef` of PyTorch
Sizes = int | Sequence[int]
#: the dimensions that an op reduces; none means all
Dims = int | Sequence[int] | None
#: a tensor that may be absent: a bias, a mask
MaybeTensor = torch.Tensor | None
#: the results of an op that has several
Results = Sequence[torch.Tensor]
