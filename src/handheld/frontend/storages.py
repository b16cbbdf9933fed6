"""Says which tensor of the graph each PyTorch storage holds while a step is recorded.

Views are not recorded. PyTorch knows the geometry (size, stride, offset) of every tensor in its storage. A
storage is one dense tensor of the graph, and an op reads it through that geometry. An in-place op assigns a new
tensor of the graph to the storage. No other functionalisation is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from handheld.errors import CaptureError
from handheld.frontend.emit import Emitter
from handheld.frontend.layout import expand, is_dense, permute, physical_order
from handheld.frontend.state import StateBuilder, TensorKey, ir_dtype, tensor_key
from handheld.frontend.values import Val
from handheld.graph.graph import Attr, View, contiguous_strides


@dataclass
class Storage:
    """The tensor of the graph that a PyTorch storage holds at this point of the recording."""

    tensor: int
    keep: torch.UntypedStorage  # A reference to the storage, so that its address is not reused.


class Storages(Emitter):
    """Builds nodes that read and write PyTorch tensors. Tensors are fake (shapes only) if `fake` is given."""

    def __init__(self, state: StateBuilder, fake: FakeTensorMode | None) -> None:
        super().__init__(state)
        self.fake = fake
        self.slot_storage: dict[str, Storage] = {}
        self._storages: dict[int, Storage] = {}
        self._stand_ins: dict[TensorKey, torch.Tensor] = {}

    def _stand_in(self, value: Any) -> Any:
        """Returns the fake tensor or copy that is recorded instead of a real tensor (parameter, buffer, constant)."""
        if not isinstance(value, torch.Tensor):
            return value
        if isinstance(value, FakeTensor) and value.constant is None:
            return value
        if value.untyped_storage()._cdata in self._storages:
            return value
        real = value.constant if isinstance(value, FakeTensor) else value
        assert real is not None
        key = tensor_key(real)
        if key not in self._stand_ins:
            owner = self.state.owner(real)
            if owner is not None:  # A view of a parameter or buffer that existed before the capture.
                whole = self._stand_in(owner)
                with torch.utils._python_dispatch._disable_current_modes():
                    self._stand_ins[key] = whole.as_strided(real.shape, real.stride(), real.storage_offset())
            else:
                self._stand_ins[key] = self.stand_in_of(self.state.find(real), real)
        return self._stand_ins[key]

    def stand_in_of(self, slot: str, like: torch.Tensor) -> torch.Tensor:
        """Makes the tensor that is recorded instead of `like`, and binds it to the slot."""
        with torch.utils._python_dispatch._disable_current_modes():
            if self.fake is None:
                copy = like.detach().clone(memory_format=torch.contiguous_format)
            else:
                with self.fake:
                    copy = torch.empty(like.shape, dtype=like.dtype)
        self.bind_tensor(copy, self.slot_tensor(slot))
        self.slot_storage[slot] = self._storages[copy.untyped_storage()._cdata]
        return copy

    def stand_for(self, slot: str, tensor: torch.Tensor) -> None:
        """Says that a tensor is the value of a slot, although the slot was made from another tensor."""
        self._stand_ins[tensor_key(tensor)] = self.stand_in_of(slot, tensor)

    # ── slots and storages ────────────────────────────────────────────────────────────────────

    def slot_view(self, name: str) -> View:
        """Reads a slot as it was last written."""
        tensor = self.slot_tensor(name)
        if name in self.slot_storage:
            tensor = self.slot_storage[name].tensor
        return self.dense(tensor)

    def bind_tensor(self, tensor: torch.Tensor, number: int) -> None:
        """Notes that the storage of `tensor` holds tensor `number` of the graph from now on."""
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = Storage(number, storage)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Says whether the storage of the tensor is part of the recording."""
        return tensor.untyped_storage()._cdata in self._storages

    def read(self, tensor: torch.Tensor) -> View:
        """Returns the view through which the graph reads a PyTorch tensor."""
        tensor = self._stand_in(tensor)
        if tensor.is_complex():
            raise CaptureError(
                f"{self._module() or 'the closure'} returns a complex tensor, or uses one as a whole. "
                "Try: torch.view_as_real(tensor) before it is returned or written"
            )
        holder = self._storages.get(tensor.untyped_storage()._cdata)
        if holder is None:
            raise CaptureError(f"{self._module() or 'the closure'} uses a tensor that no recorded op computed")
        return View(holder.tensor, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))

    def bind(self, out: torch.Tensor, view: View) -> None:
        """Assigns a value to a new PyTorch result, in the memory layout that PyTorch gave the result."""
        order = physical_order(out)
        physical = permute(view, order)
        target = ir_dtype(out.dtype)
        if not is_dense(out):
            self._bind_with_gaps(out, view, target)
            return
        whole = physical.is_contiguous and physical.size == self.tensors[physical.tensor].size
        computed_here = self.tensors[physical.tensor].role in ("activation", "gradient")
        if not (whole and computed_here and target == self.dtype_of(view)):
            physical = self.map(physical.shape, [physical], lambda x: x.to(target))
        self.bind_tensor(out, physical.tensor)

    def bind_dense(self, out: torch.Tensor, view: View) -> None:
        """Binds a dense view to `out`, which has the same elements in its own shape."""
        shape = tuple(out.shape)
        self.bind(out, View(view.tensor, shape, contiguous_strides(shape), 0))

    def _bind_with_gaps(self, out: torch.Tensor, view: View, dtype: str) -> None:
        """Binds a result that has gaps in its storage. The gaps are filled with zeros."""
        size = out.untyped_storage().nbytes() // out.element_size()
        rest = self.loops((size,), (), [], lambda b: Val(b, b.const(0, dtype), dtype))[0]
        value = self.map(view.shape, [view], lambda x: x.to(dtype))
        region: dict[str, Attr] = {
            "region_shape": tuple(out.shape),
            "region_strides": tuple(out.stride()),
            "region_offset": int(out.storage_offset()),
        }
        self.bind_tensor(out, self.emit("assign", [rest, value], [((size,), dtype)], region)[0])

    def write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        """Writes `value` into `target` in place."""
        value = self._stand_in(value)
        if self.fake is None and not value.is_meta:
            with torch.utils._python_dispatch._disable_current_modes():
                target.detach().copy_(value)  # Later reads of real values must see the write.
        storage = self._storages[target.untyped_storage()._cdata]
        source = expand(self.read(value), tuple(target.shape))
        dtype = ir_dtype(target.dtype)
        here = View(storage.tensor, tuple(target.shape), tuple(target.stride()), int(target.storage_offset()))
        base = self.tensors[storage.tensor]
        order = physical_order(target)
        physical = permute(here, order)
        if physical.is_contiguous and physical.size == base.size:
            new = permute(source, order)
            fresh = new.is_contiguous and new.size == self.tensors[new.tensor].size
            owned = self.tensors[new.tensor].role in ("activation", "gradient")
            if not (fresh and owned and self.dtype_of(new) == dtype):
                new = self.map(new.shape, [new], lambda x: x.to(dtype))
            storage.tensor = new.tensor
            return
        if self.dtype_of(source) != dtype:
            source = self.map(source.shape, [source], lambda x: x.to(dtype))
        storage.tensor = self.emit(
            "assign",
            [self.dense(storage.tensor), source],
            [(base.shape, dtype)],
            {"region_shape": here.shape, "region_strides": here.strides, "region_offset": here.offset},
        )[0]
