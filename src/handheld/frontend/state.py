"""The slots of a step: all tensors that outlive it.

Parameters and buffers are registered at the start, other tensors when they are first used. A tensor is
identified by its storage, offset, shape and strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from handheld.errors import CaptureError
from handheld.graph.dtypes import DTYPES, I32
from handheld.graph.graph import Slot

#: The graph's type for every supported PyTorch type.
_DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): row.name for row in DTYPES.values() for name in (*row.torch_kept, *row.torch_passing)
}
#: A model may cast to these types on the way; that is computed in float32. State may not have these types.
HALF = tuple(getattr(torch, name) for row in DTYPES.values() for name in row.torch_passing)


def ir_dtype(dtype: torch.dtype) -> str:
    """Returns the graph's type for a PyTorch type. Raises CaptureError if there is none."""
    if dtype not in _DTYPES:
        raise _unsupported(dtype)
    return _DTYPES[dtype]


def _unsupported(dtype: torch.dtype) -> CaptureError:
    name = str(dtype).removeprefix("torch.")
    hint = "torch.view_as_real(tensor)" if dtype.is_complex else "model.float() before capture"
    return CaptureError(f"tensors of type {name} are not supported. Try: {hint}")


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a dense NumPy copy in the graph's type. Raises CaptureError for integers that do not fit 32 bits."""
    if tensor.dtype in HALF:
        raise _unsupported(tensor.dtype)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj()).float()
    dtype = ir_dtype(tensor.dtype)
    with torch.utils._python_dispatch._disable_current_modes():
        array = tensor.detach().cpu().contiguous().numpy()
    if dtype == I32 and array.size and array.dtype == np.int64:
        low, high = int(array.min()), int(array.max())
        if low < -(2**31) or high > 2**31 - 1:
            # Masks and sentinels use the extremes of int64; these are clipped. Other values would change meaning.
            limits = (torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max)
            rest = array[(array != limits[0]) & (array != limits[1])]
            if rest.size and (rest.min() < -(2**31) or rest.max() > 2**31 - 1):
                raise CaptureError(
                    "an int64 tensor of the model has values that do not fit 32 bits. Try: values that fit int32"
                )
            array = np.clip(array, -(2**31), 2**31 - 1)
    return np.ascontiguousarray(array.astype(DTYPES[dtype].numpy))


def _check_parameter(name: str, parameter: torch.Tensor) -> None:
    """Raises CaptureError if a parameter cannot be state of a step."""
    if parameter.is_complex():
        raise CaptureError(
            f"{name} is a complex parameter, which is not supported. Try: make "
            "torch.view_as_real(parameter) the parameter, and use torch.view_as_complex in forward"
        )
    if parameter.is_meta:
        raise CaptureError(
            f"{name} has no values: it is on the device meta. "
            "Try: model.to_empty(device='cpu'), then load or initialise its values"
        )
    if parameter.dtype in HALF:
        raise CaptureError(
            f"{name} is {str(parameter.dtype).removeprefix('torch.')}; parameters are float32 here. "
            "Try: model.float() before capture, and step.plan(device, precision='half') to store values in 16 bits"
        )


class TensorKey(NamedTuple):
    """What identifies a PyTorch tensor: its storage and how it lies in it."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def tensor_key(tensor: torch.Tensor) -> TensorKey:
    storage, offset = tensor.untyped_storage()._cdata, int(tensor.storage_offset())
    return TensorKey(storage, offset, tuple(tensor.shape), tuple(tensor.stride()))


class StateBuilder:
    """All slots of a step with their initial values. The graphs of the step share them."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = dict(modules)
        self.slots: dict[str, Slot] = {}
        self.values: dict[str, np.ndarray] = {}
        self.tensors: dict[str, torch.Tensor] = {}  # Keeps the storages alive, so that they can be recognised.
        self.paths: dict[int, str] = {}
        #: For each slot that a graph has packed, all slots that lie next to each other in that pack.
        self.layout: dict[str, tuple[str, ...]] = {}
        self._by_key: dict[TensorKey, str] = {}
        for prefix, module in self.modules.items():
            self._register(prefix, module)

    def _register(self, prefix: str, module: nn.Module) -> None:
        dot = f"{prefix}." if prefix else ""
        for name, child in module.named_modules():
            self.paths.setdefault(id(child), f"{dot}{name}".rstrip(".") or prefix or "model")
        for name, parameter in module.named_parameters(remove_duplicate=False):
            _check_parameter(dot + name, parameter)
            self.add(dot + name, parameter, "parameter")
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if not buffer.is_complex():  # A complex buffer is a table; it becomes a constant where it is used.
                self.add(dot + name, buffer, "buffer")

    def add(self, name: str, tensor: torch.Tensor, role: str) -> str:
        """Registers a tensor and returns its slot. A second name for the same tensor becomes an alias."""
        key = tensor_key(tensor)
        if key in self._by_key:
            slot = self.slots[self._by_key[key]]
            if name not in slot.names:
                self.slots[slot.name] = Slot(
                    slot.name, slot.shape, slot.dtype, slot.role, (*slot.names, name), slot.torch_dtype
                )
            return slot.name
        pair = (2,) if tensor.is_complex() else ()
        self.add_value(
            name,
            host_array(tensor),
            role,
            "float32" if pair else str(tensor.dtype).removeprefix("torch."),
            (*tensor.shape, *pair),
        )
        self._by_key[key] = name
        self.tensors[name] = tensor
        return name

    def add_value(
        self,
        name: str,
        value: np.ndarray,
        role: str,
        torch_dtype: str = "float32",
        shape: tuple[int, ...] | None = None,
    ) -> str:
        """Registers state that is not a tensor in PyTorch: step counters, learning rates, constants."""
        dtype = next(row.name for row in DTYPES.values() if value.dtype.kind in row.numpy_kinds)
        shape = tuple(value.shape) if shape is None else shape
        self.slots[name] = Slot(name, shape, dtype, role, (name,), torch_dtype)
        self.values[name] = value
        return name

    def find(self, tensor: torch.Tensor) -> str:
        """Returns the slot of a real tensor. A tensor that was not registered becomes a constant."""
        key = tensor_key(tensor)
        if key not in self._by_key:
            count = sum(slot.role == "constant" for slot in self.slots.values())
            self.add(f"constant.{count}", tensor, "constant")
        return self._by_key[key]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Returns whether the tensor has a slot."""
        return tensor_key(tensor) in self._by_key

    def owner(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the parameter or buffer that a tensor is a view of, or None. A registered tensor is no view."""
        storage = tensor.untyped_storage()._cdata
        if tensor_key(tensor) in self._by_key:
            return None
        for name, whole in self.tensors.items():
            known = self.slots[name].role in ("parameter", "buffer")
            if (
                known
                and whole.untyped_storage()._cdata == storage
                and whole.is_contiguous()
                and whole.storage_offset() == 0
                and whole.dtype == tensor.dtype
                and whole.untyped_storage().nbytes() == whole.numel() * whole.element_size()
            ):
                return whole
        return None

    def path_of(self, slot: str) -> str:
        """Returns the path of the module that owns a parameter."""
        return slot.rpartition(".")[0] or "model"
