"""The types of the arguments and results of PyTorch ops, for the signatures of lowerings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: One number for all dimensions, or one per dimension (PyTorch's `IntArrayRef`).
Sizes = int | Sequence[int]
#: The dimensions that an op reduces. None means all of them.
Dims = int | Sequence[int] | None
#: A tensor that may be absent, such as a bias or a mask.
MaybeTensor = torch.Tensor | None
#: The results of an op that has more than one.
Results = Sequence[torch.Tensor]
