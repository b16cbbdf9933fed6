"""The bytes of FILES, SAMPLE and SAMPLES, by which the runner on a target reads files (native/files.h, sample.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from handheld.errors import SensorError
from handheld.sensors.mirror import Found, Wanted

UNREADABLE = 0x80000000  # set in a length: the content is the reason why the file cannot be read
SAME = 0x7FFFFFFF  # a length: the content is that of the reading before
STATUS = 0xFFFFFFFF  # an id: what sampling has cost
_RECORD = struct.Struct("<IIq")
_CUT = "the answer of the target is damaged: a record is cut off"


def found_files(data: bytes) -> list[Found]:
    """The files in an answer to FILES."""
    files, at = [], 0
    while at < len(data):
        if len(data) - at < 8:
            raise SensorError(_CUT)
        path_bytes, length = struct.unpack_from("<II", data, at)
        size, at = length & ~UNREADABLE, at + 8
        if path_bytes + size > len(data) - at:
            raise SensorError(_CUT)
        path = data[at : at + path_bytes].decode("utf-8", "replace")
        at += path_bytes
        files.append(Found(path, data[at : at + size], not length & UNREADABLE))
        at += size
    return files


def sample_list(wanted: Sequence[Wanted]) -> bytes:
    """The payload of SAMPLE."""
    parts = [struct.pack("<I", len(wanted))]
    for file in wanted:
        path = file.path.encode()
        parts += [struct.pack("<IIII", file.id, file.period_us, file.most_bytes, len(path)), path]
    return b"".join(parts)


def records(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """The records in an answer to SAMPLES: id, length, time, content."""
    at = 0
    while at < len(data):
        if len(data) - at < _RECORD.size:
            raise SensorError(_CUT)
        number, length, t_ns = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        size = 0 if length == SAME else length & ~UNREADABLE
        if size > len(data) - at:
            raise SensorError(_CUT)
        yield number, length, t_ns, data[at : at + size]
        at += size
