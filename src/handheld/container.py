"""The file format of step files and checkpoints: safetensors, written atomically.

    8 bytes   length n of the header, little-endian
    n bytes   JSON: {"__metadata__": {name: text}, tensor: {"dtype", "shape", "data_offsets"}, ...}
    the rest  the tensors, one after the other without gaps

Any safetensors library can read it. Handheld has its own reader, because an untrusted file needs more checks than a
library promises: every size is compared with the length of the file before memory is allocated, names must be unique,
and a checksum over text and tensors detects a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from handheld.errors import GraphError, HandheldError, StepFileError
from handheld.files import replace_file
from handheld.graph.decode import a_shape, an_int, an_object, fields, need, row, text, word

Array = npt.NDArray[Any]
V = TypeVar("V")

MAX_HEADER = 64 << 20
MAX_DIMS = 32  # the limit of NumPy 1
_MAX_BYTES = 2**62
_METADATA = "__metadata__"
_CHECKSUM = "crc32"
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


# Writing


def write(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str], failure: type[HandheldError] = StepFileError
) -> Path:
    """Write the file under a temporary name and then rename it, so that `path` always holds the old file or the new
    one. `failure` is the class of the error that is raised if the system cannot write it."""
    flat = {name: _bytes_of(name, arrays[name]) for name in _order(arrays)}
    header = _header(arrays, flat, metadata)

    def fill(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for data in flat.values():
            file.write(data.data)

    target = Path(os.path.realpath(path))  # If path is a link, replace the file that it points to, not the link.
    try:
        replace_file(target, fill)
    except OSError as error:
        size = 8 + len(header) + sum(data.nbytes for data in flat.values())
        reason = error.strerror or type(error).__name__
        kept = ". The previous file is unchanged" if target.exists() else ""
        raise failure(f"{path} ({size} bytes) could not be written: {reason}{kept}") from error
    return path


def _order(arrays: Mapping[str, Array]) -> list[str]:
    """The names, with the widest elements first, so that every tensor is aligned."""
    return sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))


def _bytes_of(name: str, array: Array) -> npt.NDArray[np.uint8]:
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _NAMES:
        raise StepFileError(
            f"{name!r} has the type {array.dtype}, which the file format does not support. "
            f"Try: one of {', '.join(str(d) for d in _NAMES)}"
        )
    return np.ascontiguousarray(array, dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _header(
    arrays: Mapping[str, Array], flat: Mapping[str, npt.NDArray[np.uint8]], metadata: Mapping[str, str]
) -> bytes:
    entries: dict[str, object] = {}
    end, checksum = 0, _text_checksum(metadata)
    for name, data in flat.items():
        need(name != _METADATA, f"a tensor cannot be called {name}")
        entries[name] = {
            "dtype": _NAMES[arrays[name].dtype.newbyteorder("=")],
            "shape": list(arrays[name].shape),
            "data_offsets": [end, end + data.nbytes],
        }
        end += data.nbytes
        checksum = zlib.crc32(data.data, checksum)
    head = {_METADATA: {**metadata, _CHECKSUM: f"{checksum:08x}"}}
    body = json.dumps({**head, **entries}, allow_nan=False, separators=(",", ":")).encode()
    need(len(body) <= MAX_HEADER, f"the graphs take {len(body)} bytes, more than the limit of {MAX_HEADER}")
    return body + b" " * (-len(body) % 8)


class Unfilled(NamedTuple):
    """A header for tensors whose values are not known yet. A program fills in two numbers and appends the values."""

    data: bytes
    #: Where the digits of the number (20, decimal) and of the checksum (8, hexadecimal) begin in `data`.
    number_at: int
    checksum_at: int
    #: The checksum of the text up to the digits of the number. Next come these digits, a zero byte and the values.
    checksum: int


def header_to_fill(
    tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str], number: str
) -> Unfilled:
    """A header whose metadata also has `number`, a name that sorts after all others, so that its digits come last in
    the checksum."""
    need(number > max(metadata), f"{number} must sort after the other names")
    entries: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    head = {_METADATA: {**metadata, number: "0" * 20, _CHECKSUM: "0" * 8}}
    body = json.dumps({**head, **entries}, allow_nan=False, separators=(",", ":")).encode()
    need(len(body) <= MAX_HEADER, f"the names of the state take {len(body)} bytes, more than {MAX_HEADER}")
    # Text that users chose comes before these two or after them, never between.
    digits = f'"{number}":"{"0" * 20}","{_CHECKSUM}":"'.encode()
    at = body.index(digits)
    checksum = zlib.crc32(f"{number}\0".encode(), _text_checksum(metadata))
    return Unfilled(body + b" " * (-len(body) % 8), at + len(number) + 4, at + len(digits), checksum)


def _text_checksum(metadata: Mapping[str, str]) -> int:
    checksum = 0
    for key in sorted(metadata):
        checksum = zlib.crc32(f"{key}\0{metadata[key]}\0".encode(), checksum)
    return checksum


# Reading


def read(path: Path, understand: Callable[[dict[str, str]], V]) -> tuple[dict[str, Array], V]:
    """Read an untrusted file. Returns its tensors, and the result of `understand`, which parses the metadata while the
    tensors are read. Raises StepFileError."""
    try:
        with _opened(path) as (file, size):
            return _read(file, size, understand)
    except OSError as error:
        raise StepFileError(f"{path}: {error.strerror or type(error).__name__}") from error
    except MemoryError as error:
        raise StepFileError(f"{path}: not enough memory to read it") from error
    except (StepFileError, GraphError) as error:
        raise StepFileError(f"{path}: {error}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[BufferedReader, int]]:
    if not stat.S_ISREG(os.stat(path).st_mode):  # Opening a pipe would wait forever.
        raise StepFileError("is not a file")
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def _read(file: BufferedReader, size: int, understand: Callable[[dict[str, str]], V]) -> tuple[dict[str, Array], V]:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8 or length > MAX_HEADER:
        raise StepFileError("is truncated, or not a file that Handheld wrote")
    header = an_object(parse_json(file.read(length)), "the header")
    metadata = {key: _long_text(value) for key, value in an_object(header.pop(_METADATA, None), "the metadata").items()}
    expected = metadata.pop(_CHECKSUM, "")
    entries = _entries(header, size - 8 - length)
    problem: HandheldError | None = None
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(_values, file, size - 8 - length, _text_checksum(metadata))
        try:
            meaning = understand(metadata)
        except (StepFileError, GraphError) as error:
            problem = error
        data, checksum = reading.result()
    if expected != f"{checksum:08x}":  # Damage is reported first, because it may have caused the other problem.
        raise StepFileError("is damaged: its checksum does not match. Try: copy it here again")
    arrays, at = {}, 0
    for name, (dtype, shape) in entries.items():
        end = at + math.prod(shape) * dtype.itemsize
        part = data[at:end]
        need(dtype != np.bool_ or not (part > 1).any(), f"{name!r} holds bytes that are not truth values")
        array: Array = part.view(dtype.newbyteorder("<")).reshape(shape)
        arrays[name], at = array.astype(dtype, copy=False), end
    if problem is not None:
        raise problem
    return arrays, meaning


def _values(file: BufferedReader, size: int, checksum: int) -> tuple[npt.NDArray[np.uint8], int]:
    """The rest of the file, and the checksum continued over it."""
    data = np.empty(size, np.uint8)
    need(file.readinto(data.data) == size, "it became shorter while it was read")
    return data, zlib.crc32(data.data, checksum)


def parse_json(data: bytes | str) -> Any:
    """Parse strict JSON: no repeated names, no NaN, no nesting that is too deep for Python. Raises StepFileError."""
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise StepFileError("is damaged, or not a file that Handheld wrote") from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    need(len(entries) == len(pairs), "a name appears twice")
    return entries


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _long_text(value: object) -> str:
    if not isinstance(value, str):
        raise StepFileError("malformed step file: metadata must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StepFileError("malformed step file: metadata is not valid Unicode") from None
    return value


def _entries(header: dict[str, Any], data_bytes: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of each tensor, in the order of the file. The tensors must fill the file without gaps."""
    tensors = []
    for name, entry in header.items():
        dtype, shape, offsets = fields(entry, ("dtype", "shape", "data_offsets"), "a tensor")
        kind = np.dtype(_DTYPES[word(dtype, _DTYPES, "a tensor's type")])
        sizes = a_shape(shape, "a tensor's shape")
        need(
            len(sizes) <= MAX_DIMS and math.prod(max(n, 1) for n in sizes) < _MAX_BYTES // 8,
            "a tensor's shape is out of range",
        )
        begin, end = (an_int(n, "an offset") for n in row(offsets, 2, "a tensor's offsets"))
        need(end - begin == math.prod(sizes) * kind.itemsize, "a tensor's shape and offsets do not match")
        tensors.append((begin, end, text(name, "a tensor's name"), kind, sizes))
    at = 0
    for begin, end, *_ in sorted(tensors, key=lambda entry: entry[:2]):
        need(begin == at, "tensors overlap or leave gaps")
        at = end
    if at != data_bytes:
        raise StepFileError(
            f"it is truncated or too long: {data_bytes} bytes of values, not {at}. Try: an earlier copy of it"
        )
    return {name: (kind, sizes) for _, _, name, kind, sizes in sorted(tensors, key=lambda entry: entry[:2])}
