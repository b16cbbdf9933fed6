"""Runs the user's PyTorch code once and records every op that it executes as a graph.

The recorder is a dispatch mode below autograd. It sees the forward pass, the backward pass and anything else
that the user computes as one flat sequence of ATen ops, as PyTorch itself would execute them. Tensors are fake
(shapes only) unless the model reads a value.

This module decides how each op is recorded. storages.py says which tensor of the graph a PyTorch tensor is.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from handheld.errors import CaptureError, UnsupportedOp, ValueRead
from handheld.frontend import complexes
from handheld.frontend.reading import BAKED, READS, Frozen, dependence, origin, user_line
from handheld.frontend.registry import ADVICE, DECOMPOSED, IGNORED, LOWERINGS, SHAPES, decompositions, functional_twin
from handheld.frontend.state import HALF, StateBuilder, host_array
from handheld.frontend.storages import Storages
from handheld.graph.graph import IndexRange

Args = tuple[Any, ...]
Options = dict[str, Any]


class Recorder(Storages, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops of one closure as nodes of a graph over the slots of `state`."""

    def __init__(self, state: StateBuilder, fake: FakeTensorMode | None) -> None:
        Storages.__init__(self, state, fake)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.frozen: list[Frozen] = []
        #: For each input that is used as an index, the values it may have.
        self.ranges: dict[str, IndexRange] = {}
        self._sequence: dict[int, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # Otherwise the first op imports PyTorch's compiler, which takes seconds.

    # ── dispatch ──────────────────────────────────────────────────────────────────────────────

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Args = (), kwargs: Options | None = None
    ) -> Any:
        """Records one op: by its lowering, else by a decomposition of registry.py, else by PyTorch's own."""
        kwargs = kwargs or {}
        name = str(func)
        if name in IGNORED:
            return func(*args, **kwargs)
        self._sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._module())
        if name in READS and self._constant(args) is not None:
            return func(self._constant(args))
        if name == "aten._to_copy.default":
            self._report_half(kwargs.get("dtype"))
        args, kwargs = pytree.tree_map(self._stand_in, (args, kwargs))
        if name == "aten._unsafe_view.default":
            func = torch.ops.aten.view.default
        if complexes.holds_complex(args, kwargs):
            return self._complex(name, func, args, kwargs)
        if name in LOWERINGS:
            out = self._execute(func, args, kwargs)
            self.torch_op = name
            replaced = LOWERINGS[name](self, out, *args, **kwargs)
            return out if replaced is None else replaced
        if name in DECOMPOSED:
            with self:
                result = DECOMPOSED[name](*args, **kwargs)
            return self._laid_out(result, func, args, kwargs)
        if name in READS:
            return self._read_value(func, args, kwargs)
        if name in BAKED:
            return self._bake(func, args, kwargs)
        if name in ("aten.copy_.default", "prims.copy_to.default"):
            self.write(args[0], args[1])
            return args[0]
        if func._schema.is_mutable:
            return self._mutate(func, args, kwargs)
        if _composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if _is_view(func):
            return self._execute(func, args, kwargs)
        table = decompositions()
        decompose = table.get(func, func.decompose)
        with self:
            result = decompose(*args, **kwargs)
        if result is not NotImplemented:
            return self._laid_out(result, func, args, kwargs)
        raise self._unsupported(name)

    def _report_half(self, dtype: torch.dtype | None) -> None:
        """Warns if code casts to 16 bits. (In the backward pass, autograd undoes casts of the forward pass.)"""
        if dtype in HALF and torch._C._current_autograd_node() is None:
            warnings.warn(
                f"this cast to {str(dtype).removeprefix('torch.')} has no effect here: values are computed in float32. "
                "Try: step.plan(device, precision='half') to store values in 16 bits",
                stacklevel=2,
            )

    def _unsupported(self, name: str, what: str = "") -> UnsupportedOp:
        advice = ADVICE.get(name, "Try: replace it in the model, or add a lowering in handheld/frontend/")
        where = self._module() or "the closure"
        return UnsupportedOp(f"{name}{what} has no lowering (in {where}). {advice}")

    def _complex(self, name: str, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Records an op that reads or returns complex numbers."""
        if name == "aten.copy_.default":
            self.write(args[0], args[1])
            return args[0]
        if func._schema.is_mutable:
            return self._mutate(func, args, kwargs)
        if name not in complexes.COMPLEX:
            if _composite(func):
                with self:
                    return func.decompose(*args, **kwargs)
            if _is_view(func):
                return self._execute(func, args, kwargs)
        with self:
            result = complexes.compute(name, func, args, kwargs)
        if result is NotImplemented:
            raise self._unsupported(name, " of complex numbers")
        expected = self._execute(func, args, kwargs)
        if not expected.is_complex() or expected.is_conj() or expected.stride() == result.stride():
            return result
        self.bind(torch.view_as_real(expected), self.read(torch.view_as_real(result)))
        return expected

    def _laid_out(self, result: Any, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Returns the result of a decomposition in the layout of the op itself. Later ops may rely on it."""
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        if all(t.is_contiguous() for t in tensors):
            return result
        expected = pytree.tree_leaves(self._execute(func, args, kwargs))
        leaves, spec = pytree.tree_flatten(result)
        for n, (leaf, target) in enumerate(zip(leaves, expected, strict=True)):
            if isinstance(leaf, torch.Tensor) and leaf.stride() != target.stride():
                self.bind(target, self.read(leaf))
                leaves[n] = target
        return pytree.tree_unflatten(leaves, spec)

    def _execute(self, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Runs the op itself on fake or real tensors, to get the shapes of its results."""
        if self.fake is not None and str(func) in SHAPES:
            return SHAPES[str(func)](*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ValueRead(f"{func} in {self._module()} reads a value") from error

    def _constant(self, args: Args) -> torch.Tensor | None:
        """Returns the value of a tensor that PyTorch knows even while tensors are fake, or None."""
        if len(args) != 1 or not isinstance(args[0], FakeTensor) or args[0].constant is None:
            return None
        number = self._storages[self._stand_in(args[0]).untyped_storage()._cdata].tensor
        return args[0].constant if self.tensors[number].role == "constant" else None

    def _read_value(self, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Returns a number that Python reads from a tensor. If it can change between steps, it is noted as frozen."""
        value = self._execute(func, args, kwargs)
        if self.fake is None:
            self.note_frozen(args, repr(value), value)
        return value

    def note_frozen(self, args: Any, what: str, value: Any, final: bool = True) -> None:
        """Notes that Python read a value, if that value can change from step to step. A value that depends on a
        parameter certainly changes: with `final` it is frozen anyway, otherwise UnsupportedOp is raised."""
        views = [self.read(t) for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
        sources = dependence(self, [v.tensor for v in views])
        if not sources:
            return
        where = self._module()
        if not final and any(role == "parameter" for role, _ in sources):
            raise UnsupportedOp(
                f"{where or 'the closure'} selects elements by values that the model computes, so the size of "
                f"the result changes from step to step ({user_line()}). "
                "Try: use torch.where, or multiply by a mask"
            )
        names = dict.fromkeys(f"input {name}" if role == "input" else name or role for role, name in sources)
        module = "" if where in ("loss", "model") else where
        self.frozen.append(Frozen(user_line(), module, what, tuple(names), value))

    def _bake(self, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Computes a result whose size depends on values. It is computed once and is a constant from then on."""
        out = self._execute(func, args, kwargs)
        if self.fake is not None:
            raise ValueRead(f"{func} in {self._module()} reads values")
        leaves = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        shapes = " and ".join(str(list(t.shape)) for t in leaves)
        value = [t.detach().clone() for t in leaves]
        self.note_frozen(args, f"the result of {func} of shape {shapes}", value, final=False)
        for leaf in leaves:
            self.bind(leaf, self.constant(host_array(leaf)))
        return out

    def baked_positions(self, mask: torch.Tensor) -> list[torch.Tensor]:
        """Returns the positions where a mask is true, one index tensor per dimension. They are frozen at capture."""
        with self:
            return list(torch.ops.aten.nonzero.default(mask).unbind(1))

    def note_range(self, index: torch.Tensor, low: int, high: int, ignore: int | None = None) -> None:
        """Notes the range of valid values (low to high - 1) if `index` is a whole input, or a copy of it."""
        view = self.read(index)
        tensor = self.tensors[origin(self, view.tensor)[0]]
        order = next((n for n in self.nodes if n.op == "sort" and n.outputs[1] == tensor.id), None)
        if order is not None and order.inputs[0].shape[-1] > high:
            raise CaptureError(
                f"{user_line()}: the order of {order.inputs[0].shape[-1]} values is used as an index into a dimension "
                f"of size {high}. Try: sort as many values as the dimension has"
            )
        if tensor.role != "input" or view.size != tensor.size:
            return
        known = self.ranges.get(tensor.name)
        if known is not None:
            low, high = max(low, known.low), min(high, known.high)
            ignore = ignore if ignore == known.ignore else None
        self.ranges[tensor.name] = IndexRange(tensor.name, low, high, ignore)

    def _mutate(self, func: OpOverload, args: Args, kwargs: Options) -> Any:
        """Records an in-place or out= op: computes its functional form, then writes the results into the targets."""
        if torch.Tag.inplace_view in func.tags:  # It changes only the shape.
            return self._execute(func, args, kwargs)
        functional = functional_twin(func)
        if functional is None:
            raise UnsupportedOp(
                f"in-place op {func} has no lowering (in {self._module()}). Try: replace it in the model"
            )
        results = [a.name for a in func._schema.arguments if a.alias_info is not None and a.is_out]
        targets = [kwargs[name] for name in results] if results else [args[0]]
        rest = {k: v for k, v in kwargs.items() if k not in results}
        with self:
            value = functional(*args, **rest)
        values = value if isinstance(value, (tuple, list)) else [value]
        for target, new in zip(targets, values, strict=True):
            if target.shape != new.shape:
                raise UnsupportedOp(
                    f"{func} resizes its out= tensor (in {self._module()}). Try: give it a tensor of the right shape"
                )
            self.write(target, new)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _module(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None:
            number = node._sequence_nr()
            if number not in self._sequence:  # A helper of the previous op: a write into a view.
                number = max((n for n in self._sequence if n < number), default=-1)
            if number in self._sequence:
                return self._sequence[number]
        return self.path[-1] if self.path else ""

    def write(self, target: torch.Tensor, value: torch.Tensor) -> None:
        value = self._stand_in(value)
        if target.is_complex():
            with self:
                value = torch.view_as_real(value if value.is_complex() else value.to(target.dtype))
            target = torch.view_as_real(target)
        super().write(target, value)


def _composite(func: OpOverload) -> bool:
    """Says whether PyTorch itself always decomposes the op, such as reshape into a view or a copy."""
    return bool(
        func._can_decompose() and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    )


def _is_view(func: OpOverload) -> bool:
    """Says whether the result of the op aliases an input, so that nothing is computed."""
    return any(r.alias_info is not None for r in func._schema.returns)
