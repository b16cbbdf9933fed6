"""Step files and checkpoints: exact round trips, and a failed write leaves the old file."""

from __future__ import annotations

import errno
import os
import resource

import numpy as np
import pytest

from handheld import package
from handheld.errors import CheckpointError, GraphError, StepFileError
from handheld.package import load, load_state, save, save_state
from helpers.step_files import example, same

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
    """The operating system stops the write in the middle."""
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


def test_version_is_a_promise():
    assert package.VERSION == 1  # A new version must still read the old one.
