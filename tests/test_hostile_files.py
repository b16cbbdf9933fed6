"""Step files that are truncated, changed or malicious are refused with a reason."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import random
import tracemalloc
import zlib

import numpy as np
import pytest

from handheld import container
from handheld.errors import StepFileError
from handheld.package import load, load_state, save, save_state
from helpers.step_files import content, example, refused, rewritten, same

# ── untrusted files ─────────────────────────────────────────────────────────────────────────────────


def raw(path, header: object, data: bytes = b"") -> str:
    """The reason why a file with this header is refused."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return refused(path)


def test_what_is_no_step_file(tmp_path):
    path = tmp_path / "s"
    assert "No such file" in refused(path)
    assert "is not a file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refused(tmp_path / "pipe")
    for data in (b"", b"PK\3\4", pickle.dumps({"a": 1}), b"\x80\2" * 50, b"\0" * 100, b"{}" * 9):
        path.write_bytes(data)
        refused(path)
    container.write(path, {"x": np.zeros(3)}, {"format": "pt"})
    assert "is not a step file" in refused(path)
    save_state(path, {}, {})
    assert "is a checkpoint, not a step file" in refused(path)
    save(example(), path)
    with pytest.raises(StepFileError, match="is a step file, not a checkpoint"):
        load_state(path)


def test_a_newer_file(tmp_path):
    for version, message in (
        ("2", "newer Handheld .*Try: install"),
        ("0", "no step"),
        ("-1", "version"),
        ("1e9", "version"),
        ("٢", "version"),
        ("9" * 50, "version"),
    ):
        container.write(tmp_path / "s", {}, {"handheld": "step", "version": version, "more": "x"})
        with pytest.raises(StepFileError, match=message):
            load(tmp_path / "s")


def test_hostile_headers(tmp_path):
    path = tmp_path / "s"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    assert "truncated" in refused(path)
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    good = {"__metadata__": {}, "x": one}
    for change in (
        {"dtype": "F128"},
        {"dtype": None},
        {"shape": [2**40]},
        {"shape": [-2]},
        {"shape": [[2]]},
        {"shape": [0, 2**63]},
        {"shape": [0] * 40, "data_offsets": [0, 0]},
        {"shape": 2},
        {"data_offsets": [0, 2**62]},
        {"data_offsets": [-8, 0]},
        {"data_offsets": [8, 16]},
        {"data_offsets": [0]},
        {"data_offsets": [0, True]},
        {"data_offsets": ["0", "8"]},
        {"shape": [2**31, 2**31], "data_offsets": [0, 2**64]},
        {"more": 1},
        {"shape": [0, 2**31, 2**31, 2**31], "data_offsets": [0, 0]},
    ):
        raw(path, {**good, "x": {**one, **change}}, b"\0" * 8)
    for header in (
        [],
        "x",
        3,
        None,
        {"x": one},
        {"__metadata__": []},
        {"__metadata__": {"a": 1}, "x": one},
        {"__metadata__": {"a": "\ud800"}, "x": one},
        {**good, "y": one},
        {**good, "\ud800": one},
        b'{"__metadata__":{},"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
        b'{"__metadata__":{"a":"b","a":"c"}}',
        b'{"__metadata__":{}' + b" " * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 100_000,
        b"\xff\xfe{}",
    ):
        raw(path, header, b"\0" * 8)
    assert "not truth values" in raw(
        path,
        {
            "__metadata__": {"crc32": f"{zlib.crc32(bytes([1, 2])):08x}"},
            "x": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]},
        },
        b"\1\2",
    )


def test_sizes_are_checked_before_memory_is_asked_for(tmp_path):
    claims = {"dtype": "F64", "shape": [2**30], "data_offsets": [0, 2**33]}
    tracemalloc.start()
    raw(tmp_path / "s", {"__metadata__": {}, "x": claims}, b"\0" * 1000)
    step = content()
    step["slots"][0]["shape"] = [2**31 - 1]
    step["graphs"]["train"]["tensors"][0][1] = [2**31 - 1]
    rewritten(tmp_path / "s", step)
    refused(tmp_path / "s")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_state_and_values_must_agree(tmp_path):
    path, values = tmp_path / "s", example().values
    rewritten(path, content())
    assert same(load(path), example())
    for change, message in (
        ({"a": None}, "slot 'a' has no value"),
        ({"z": values["n"]}, "'z' belongs to no slot"),
        ({"a": values["a"][:-1]}, r"slot 'a' is f32\[200\], but its value is float32\[199\]"),
        ({"b": values["b"][0]}, "slot 'b'"),
        ({"n": values["n"].astype("i8")}, "slot 'n'"),
        ({"m": values["m"].astype("u1")}, "slot 'm'"),
    ):
        rewritten(path, content(), {k: v for k, v in {**values, **change}.items() if v is not None})
        with pytest.raises(StepFileError, match=message):
            load(path)
    for key, value in (("role", "activation"), ("torch_dtype", "object"), ("name", "b"), ("dtype", "i32")):
        step = content()
        step["slots"][0][key] = value
        rewritten(path, step)
        refused(path)
    step = content()
    step["graphs"]["train"]["nodes"][0]["inputs"][0][3] = 1
    rewritten(path, step)
    assert "node 0 (map from layer): a view reads [1, 384]" in refused(path)
    for text in ("", "[]", "null", "{" * 50_000, '{"slots":[],"slots":[]}', '{"x":NaN}'):
        rewritten(path, text)
        refused(path)


# ── fuzzing, seeded ───────────────────────────────────────────────────────────────────────────────


def test_every_truncation(tmp_path):
    path = tmp_path / "s"
    data = save(example(), path).read_bytes()
    rng = random.Random(1)
    for length in (*range(40), *rng.sample(range(len(data)), 300), len(data) - 1):
        path.write_bytes(data[:length])
        refused(path)
    path.write_bytes(data + b"\0")
    assert "too long" in refused(path)


def test_flipped_bits_are_noticed(tmp_path):
    path = tmp_path / "s"
    data = save(example(), path).read_bytes()
    rng, read = random.Random(2), 0
    for _ in range(1000):
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            assert same(load(path), example())  # At most, a space became a tab.
            read += 1
        except StepFileError:
            pass
    assert read < 10


def boxes(data: object) -> list:
    """Every list and dictionary in a document."""
    found = [data]
    for child in data.values() if isinstance(data, dict) else data:  # type: ignore[union-attr]
        if isinstance(child, dict | list):
            found += boxes(child)
    return found


JUNK = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**40,
    0.5,
    1e308,
    "",
    "f32",
    "a",
    "\ud800",
    "x" * 20_000,
    [],
    [[]],
    {},
    {"f": "nan"},
    {"d": {"a": 1}},
    {"l": [1]},
    "gather",
    "scan",
    [0, 1],
)


def mutate(data: object, rng: random.Random) -> None:
    box = rng.choice([b for b in boxes(data) if b])
    key = rng.choice(list(box)) if isinstance(box, dict) else rng.randrange(len(box))
    kind = rng.random()
    if kind < 0.15:
        del box[key]
    elif kind < 0.25 and isinstance(box, list):
        box.insert(key, copy.deepcopy(box[key]))
    elif kind < 0.35:
        other = rng.choice(boxes(data))
        box[key] = copy.deepcopy(other if other is not data else None)
    elif kind < 0.6 and type(box[key]) is int:
        box[key] += rng.choice((-5, -1, 1, 7, 1000))
    else:
        box[key] = copy.deepcopy(rng.choice(JUNK))


def test_mutated_content(tmp_path, monkeypatch):
    """The checksum is right but the content is wrong."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    rng, path, good = random.Random(3), tmp_path / "s", json.dumps(content())
    read = 0
    for _ in range(1200):
        step = json.loads(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            mutate(step, rng)
        rewritten(path, step)
        try:
            load(path)
            read += 1
        except StepFileError:
            pass
    assert 10 < read < 800


def test_mutated_headers(tmp_path):
    rng, path = random.Random(4), tmp_path / "s"
    data = save(example(), path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    good, body = data[8 : 8 + length], data[8 + length :]
    for _ in range(800):
        header = json.loads(good)
        for _ in range(rng.choice((1, 1, 3))):
            mutate(header, rng)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)
        with contextlib.suppress(StepFileError):
            assert same(load(path), example())
