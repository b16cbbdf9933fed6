"""Packed sequences while a step is recorded: padded data and lengths stand for them.

PyTorch packs the valid rows of a padded batch without gaps. The number of rows depends on the lengths, and a graph
has fixed shapes. So a recorded PackedSequence keeps the padded data [steps, batch, ...] and the lengths, which are
a tensor of the graph and may change with every step:

    pack_padded_sequence ──► PackedSequence(data=Rows, batch_sizes=Lengths) ──► nn.LSTM, nn.GRU, nn.RNN
                                                                            ──► pad_packed_sequence

recurrent.py runs the layers. packed_rows.py says what a model may do with `packed.data`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch.nn.utils import rnn

from handheld.errors import CaptureError
from handheld.frontend.packed_rows import Rows
from handheld.frontend.reading import note_numbers, origin, user_line
from handheld.frontend.record import Recorder

T = torch.Tensor


class Longest(int):
    """The number of padded steps where PyTorch has the length of the longest sequence."""


class Lengths:
    """Stands for `PackedSequence.batch_sizes`: the length of each sequence of the batch."""

    def __init__(self, rec: Recorder, lengths: T, steps: int) -> None:
        self.rec, self.lengths, self.steps = rec, lengths, steps

    @property
    def batch(self) -> int:
        return self.lengths.shape[0]

    @property
    def device(self) -> torch.device:
        return self.lengths.device

    def __getitem__(self, index: int) -> int:
        if index != 0:
            self._refuse(f"[{index}]")
        return self.batch

    def size(self, dim: int = 0) -> int:
        return Longest(self.steps)

    def __len__(self) -> int:
        return self.steps

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def _refuse(self, what: str) -> NoReturn:
        raise CaptureError(
            f"{user_line()}: batch_sizes{what} of a packed sequence depends on the lengths of each batch, so it is not "
            "known during a capture. Try: compute with the lengths instead, such as "
            "torch.arange(steps) < lengths[:, None]"
        )

    @cached_property
    def valid(self) -> T:
        """Whether each step belongs to the sequence: bool [steps, batch]."""
        return torch.arange(self.steps).unsqueeze(1) < self.lengths.unsqueeze(0)

    @cached_property
    def last(self) -> T:
        """Whether each step is the last of the sequence: bool [steps, batch]."""
        return torch.arange(self.steps).unsqueeze(1) == self.lengths.unsqueeze(0) - 1

    def keep(self, x: T, fill: T | float) -> T:
        """Returns x[steps, batch, ...] with `fill` outside the sequences."""
        return torch.where(self.valid.reshape(*self.valid.shape, *[1] * (x.dim() - 2)), x, fill)

    def is_zero(self, x: T) -> bool:
        """Says whether the code created x as zeros. Such a state needs no computation."""
        number = self.rec.read(x).tensor
        node = next((n for n in self.rec.nodes if number in n.outputs), None)
        if node is None or node.op != "map" or node.inputs or len(node.program) != 1:
            return False
        return node.program[0].op == "const" and node.program[0].params[0] == 0


def _pack(rec: Recorder, x: T, lengths: T, batch_first: bool) -> tuple[Rows, Lengths]:
    x = x.transpose(0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    if tuple(lengths.shape) != (batch,):
        raise CaptureError(
            f"{user_line()}: pack_padded_sequence got lengths of shape {list(lengths.shape)} for {batch} sequences. "
            f"Try: lengths of shape [{batch}], and batch_first={not batch_first} if the batch is the other dimension"
        )
    rec.note_range(lengths, 1, steps + 1)
    if not _from_shapes():
        note_numbers(rec, lengths, "the lengths")
    known = Lengths(rec, lengths, steps)
    return Rows(x, known), known


def _from_shapes() -> bool:
    """Says whether pack_sequence packs: its lengths are sizes of tensors, which cannot change."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename != rnn.__file__:
        frame = frame.f_back
    return frame.f_back is not None and frame.f_back.f_code is rnn.pack_sequence.__code__


def _pad(data: Any, lengths: Any, batch_first: bool, value: float, total: int) -> tuple[T, T]:
    if not isinstance(lengths, Lengths) or not isinstance(data, Rows):
        refuse_packed("pad_packed_sequence")
    x = lengths.keep(data.padded, value)
    if not isinstance(total, Longest) and total > lengths.steps:
        x = torch.cat([x, x.new_full((total - lengths.steps, *x.shape[1:]), value)])
    return (x.transpose(0, 1) if batch_first else x), lengths.lengths


def _warn_padded(rec: Recorder, lengths: Lengths, batch: Mapping[str, Any]) -> None:
    """Warns if PyTorch would return fewer rows for the example batch: no sequence has the padded length."""
    source = rec.tensors[origin(rec, rec.read(lengths.lengths).tensor)[0]]
    if source.role != "input":
        return
    with torch.utils._python_dispatch._disable_current_modes():
        values = torch.as_tensor(batch[source.name])
        longest = lengths.steps if values.is_meta else int(values.max())
    if longest != lengths.steps:
        warnings.warn(
            f"pad_packed_sequence returns {lengths.steps} rows, the padded length of its input. "
            f"PyTorch returns {longest} rows for the example batch, the length of its longest sequence. "
            "Try: total_length=x.size(1), or size(0) without batch_first, so that both are equal",
            stacklevel=2,
        )


def refuse_packed(what: str) -> NoReturn:
    """Raises the error for a PackedSequence that was made outside the recording, or whose data is another tensor."""
    raise CaptureError(
        f"{user_line()}: {what} got a PackedSequence whose rows were not packed in the recorded code, so its lengths "
        "could not change from step to step. Try: a batch of padded sequences and a tensor of lengths, and "
        "pack_padded_sequence(x, lengths, enforce_sorted=False) in the model"
    )


def is_packed(value: object) -> bool:
    """Says whether this is a recorded PackedSequence."""
    return isinstance(value, rnn.PackedSequence) and isinstance(value.batch_sizes, Lengths)


def padded_output(value: Any) -> Any:
    """Returns an output of the model; a packed sequence as zero-padded steps [steps, batch, ...]."""
    if is_packed(value):
        return rnn.pad_packed_sequence(value, total_length=len(value.batch_sizes))[0]
    return value.lengths.keep(value.padded, 0) if isinstance(value, Rows) else value


@contextmanager
def packed_sequences(rec: Recorder, batch: Mapping[str, Any]) -> Iterator[None]:
    """While active, packing and padding are recorded with lengths that may change. `batch` is the example batch."""

    def pack(x: T, lengths: T, batch_first: bool) -> tuple[Rows, Lengths]:
        return _pack(rec, x, lengths, batch_first)

    def pad(data: Any, lengths: Any, batch_first: bool, value: float, total: int) -> tuple[T, T]:
        if isinstance(total, Longest) and isinstance(lengths, Lengths):
            _warn_padded(rec, lengths, batch)
        return _pad(data, lengths, batch_first, value, total)

    # The functions of torch.nn.utils.rnn look these up at every call, so names that were imported before work too.
    for name, function in (("_pack_padded_sequence", pack), ("_pad_packed_sequence", pad)):
        setattr(torch._VF, name, function)
    try:
        yield
    finally:
        for name in ("_pack_padded_sequence", "_pad_packed_sequence"):
            delattr(torch._VF, name)
