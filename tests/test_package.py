"""Step files and checkpoints: exact, whole or not there at all, and no harm from bad ones."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import pickle
import random
import resource
import tracemalloc
import zlib

import numpy as np
import pytest

from handheld import container, package
from handheld.errors import CheckpointError, GraphError, StepFileError
from handheld.graph.graph import Graph, GraphOutput, Node, Origin, Slot, SlotWrite, Tensor, View
from handheld.graph.program import Instr, Store
from handheld.package import load, load_state, save, save_state
from handheld.step import Step


def example() -> Step:
    """Two parameters updated as one pack, a counter and a mask; every type a slot can have."""
    shapes = {0: (200,), 1: (1, 3), 2: (200,), 3: (1, 3), 4: (384,), 5: (384,), 6: (), 7: (2, 2)}
    roles = {0: "parameter", 1: "parameter", 4: "parameter", 6: "control", 7: "constant"}
    tensors = {i: Tensor(i, s, "f32", roles.get(i, "gradient"), f"t{i}") for i, s in shapes.items()}
    tensors[6] = Tensor(6, (), "i32", "control")
    tensors[7] = Tensor(7, (2, 2), "bool", "constant")
    program = (Instr("load", "f32", (), (0, (), 0.0)), Instr("const", "f32", (), (0.5,)), Instr("mul", "f32", (0, 1)))
    node = Node(
        "map",
        (View(4, (384,), (1,)),),
        (5,),
        {"shape": (384,), "axes": (), "program": program, "stores": (Store(2),)},
        Origin("update", "layer", "sgd"),
    )
    graph = Graph(
        "train",
        tensors,
        (node,),
        (),
        {"a": 0, "b": 1, "n": 6, "m": 7},
        (SlotWrite("a", 2), SlotWrite("b", 3)),
        (GraphOutput("loss", View(2, (), ()), "float32"),),
        {"rate": 0.1, "names": ["x", ("y",)]},
        {4: (0, 1), 5: (2, 3)},
    )
    slots = {
        "a": Slot("a", (200,), "f32", "parameter", ("a", "tied.a")),
        "b": Slot("b", (1, 3), "f32", "parameter", ("b",), "float64"),
        "n": Slot("n", (), "i32", "control", ("n",), "int64"),
        "m": Slot("m", (2, 2), "bool", "constant", (), "bool"),
        "unused": Slot("unused", (3, 0), "f32", "buffer", ("unused",)),
    }
    rng = np.random.default_rng(0)
    values = {
        "a": rng.normal(size=200).astype("f"),
        "b": np.array([[0, np.nan, -np.inf]], "f"),
        "n": np.array(7, np.int32),
        "m": np.array([[True, False], [False, True]]),
        "unused": np.zeros((3, 0), "f"),
    }
    return Step(slots, values, {"train": graph}, {"name": "tiny", "epochs": 3, "tags": ("a", "b")})


def same(a: Step, b: Step) -> bool:
    values = [{k: (v.dtype, v.shape, v.tobytes()) for k, v in step.values.items()} for step in (a, b)]
    return values[0] == values[1] and (a.slots, a.graphs, a.meta) == (b.slots, b.graphs, b.meta)


def refused(path) -> str:
    with pytest.raises(StepFileError) as caught:
        load(path)
    return str(caught.value)


# ── what is written comes back ────────────────────────────────────────────────────────────────────


def test_round_trip(tmp_path):
    path = tmp_path / "tiny.step"
    assert save(example(), path) == path
    back = load(path)
    assert same(back, example())
    assert back.graphs["train"].packs == {4: (0, 1), 5: (2, 3)}
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.step"]
    save(back, path)
    assert same(load(str(path)), example())


def test_checkpoint_round_trip(tmp_path):
    arrays = {
        f"x.{d}": np.arange(6).reshape(2, 3).astype(d) for d in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")
    }
    arrays |= {"turned": arrays["x.f4"].T, "big": arrays["x.i4"].astype(">i4"), "none": np.zeros(0)}
    meta = {"epoch": 3, "metrics": {"loss": [0.5, float("inf")]}, "seed": (1, None, True, "é")}
    save_state(tmp_path / "c", arrays, meta)
    back, facts = load_state(tmp_path / "c")
    assert facts == meta and sorted(back) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype.newbyteorder("=") and back[name].flags.writeable


def test_other_libraries_can_read_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    save(example(), tmp_path / "s")
    found = safetensors.load_file(tmp_path / "s")
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in example().values.items()}


def test_a_captured_step(tmp_path):
    torch = pytest.importorskip("torch")
    from handheld.frontend.entry import capture

    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters())
    batch = (torch.randn(6, 5), torch.randint(0, 3, (6,)))
    step = capture(model, torch.nn.functional.cross_entropy, optimizer, batch)
    assert same(load(step.save(tmp_path / "s")), step)


def test_only_what_is_legal_is_written(tmp_path):
    step = example()
    step.values["a"] = step.values["a"][:-1]
    with pytest.raises(StepFileError, match="slot 'a' is f32"):
        save(step, tmp_path / "s")
    del step.values["a"]
    with pytest.raises(StepFileError, match="slot 'a' has no value"):
        save(step, tmp_path / "s")
    step = example()
    del step.slots["n"], step.values["n"]
    with pytest.raises(GraphError, match="slot 'n'"):
        save(step, tmp_path / "s")
    with pytest.raises(StepFileError, match="complex"):
        save_state(tmp_path / "s", {"z": np.zeros(2, complex)}, {})
    with pytest.raises(GraphError, match="object"):
        save_state(tmp_path / "s", {}, {"x": object()})
    assert not list(tmp_path.iterdir())


# ── a write that fails leaves what was there ──────────────────────────────────────────────────────


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk(tmp_path, monkeypatch, call):
    path = tmp_path / "s"
    save(example(), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(StepFileError, match=rf"{path}.*No space left"):
        save(example(), path)
    with pytest.raises(CheckpointError, match="No space left"):
        save_state(tmp_path / "new", {}, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_write_cut_short(tmp_path):
    """The system stops the file in the middle."""
    path = tmp_path / "s"
    save(example(), path)
    big = {"x": np.zeros(100_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(CheckpointError, match="800"):
            save_state(path, big, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert same(load(path), example()) and list(tmp_path.iterdir()) == [path]


def test_ctrl_c_while_writing(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(example(), tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_no_folder_and_links(tmp_path):
    with pytest.raises(StepFileError, match="No such file"):
        save(example(), tmp_path / "nowhere" / "s")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    save(example(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and same(load(tmp_path / "target"), example())


# ── files that nobody vouches for ─────────────────────────────────────────────────────────────────


def raw(path, header: object, data: bytes = b"") -> str:
    """A file with this header; says why it is refused."""
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
        ("2", "newer Handheld .*upgrade"),
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
    assert "no truth value" in raw(
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


def content() -> dict:
    """The JSON inside a step file."""
    found: dict = {}

    def take(path, values, metadata):
        found.update(json.loads(metadata["step"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "write", take)
        save(example(), "nowhere")
    return found


def rewritten(path, step: object, values: dict | None = None) -> None:
    """A file with a right checksum and any content."""
    text = step if isinstance(step, str) else json.dumps(step)
    container.write(
        path, example().values if values is None else values, {"handheld": "step", "version": "1", "step": text}
    )


def test_state_and_values_must_agree(tmp_path):
    path, values = tmp_path / "s", example().values
    rewritten(path, content())
    assert same(load(path), example())
    for change, message in (
        ({"a": None}, "slot 'a' has no value"),
        ({"z": values["n"]}, "'z' belongs to no slot"),
        ({"a": values["a"][:-1]}, r"slot 'a' is f32\[200\] and its value float32\[199\]"),
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
            assert same(load(path), example())  # a space became a tab, at most
            read += 1
        except StepFileError:
            pass
    assert read < 10


def boxes(data: object) -> list:
    """Every container in a document."""
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
    """The checksum is right and the content is not."""
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


def test_version_is_a_promise():
    assert package.VERSION == 1  # a new one must still read the old
