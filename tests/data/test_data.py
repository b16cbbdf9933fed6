"""Data: epochs that repeat exactly, the kinds of data, errors that say what to do next."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from handheld.data import ArrayData, Data, ImageData, IterableData, TextData, digits, images, load_data, npz, text
from handheld.data.batches import sizes_in
from handheld.errors import DataError

X, Y = np.arange(46.0).reshape(23, 2), np.arange(23) % 3


def rows(batches) -> list[list[int]]:
    """The samples in each batch of `ArrayData(X, ...)`."""
    return [(batch[0][:, 0] // 2).astype(int).tolist() for batch in batches]


# ── batches ───────────────────────────────────────────────────────────────────────────────────────


def test_arrays():
    data = ArrayData(X, Y, batch_size=5)
    assert isinstance(data, Data) and (len(data), data.samples, data.dropped) == (4, 23, 3)
    batches = list(data.epoch(0))
    assert len(batches) == 4 and all(x.shape == (5, 2) and y.shape == (5,) for x, y in batches)
    assert batches[0][0].dtype == np.float32 and batches[0][1].dtype == np.int64
    for x, y in batches:
        np.testing.assert_array_equal(y, (x[:, 0] / 2).astype(int) % 3)


def test_an_epoch_is_decided_by_its_number():
    data = ArrayData(X, batch_size=5, seed=7)
    first, second = rows(data.epoch(0)), rows(data.epoch(1))
    assert first != second and rows(data.epoch(1)) == second
    assert rows(ArrayData(X, batch_size=5, seed=7).epoch(1, start=2)) == second[2:]
    assert rows(ArrayData(X, batch_size=5, seed=8).epoch(0)) != first
    assert list(data.epoch(0, start=4)) == [] and rows(iter(data)) == first
    used = sorted(i for batch in first for i in batch)
    assert len(set(used)) == 20
    assert rows(ArrayData(X, batch_size=5, shuffle=False).epoch(9))[0] == [0, 1, 2, 3, 4]


def test_a_dictionary_of_arrays_makes_dictionaries(tmp_path):
    data = ArrayData({"input_ids": X, "labels": Y}, batch_size=5, shuffle=False)
    (batch,) = next(data.epoch(0))
    assert list(batch) == ["input_ids", "labels"] and batch["labels"].tolist() == Y[:5].tolist()
    assert any("array input_ids is float64" in note for note in data.notes)
    np.savez(tmp_path / "a.npz", labels=Y, input_ids=Y + 1, extra=X)
    named = npz(tmp_path / "a.npz", 2, names=("input_ids", "labels"))
    (batch,) = next(named.train.epoch(0))
    assert list(batch) == ["input_ids", "labels"] and named.test.samples == 5
    np.testing.assert_array_equal((batch["input_ids"] - 1), batch["labels"])
    assert any("not used: extra" in note for note in named.notes)
    assert list(next(npz(tmp_path / "a.npz", 2).train.epoch(0))[0]) == ["labels", "input_ids", "extra"]
    assert len(next(npz(tmp_path / "a.npz", 2, names=()).train.epoch(0))) == 3
    with pytest.raises(DataError, match=r"no 'mask', which the model takes. Try: numpy.savez\(path, mask=..."):
        npz(tmp_path / "a.npz", 2, names=("mask",))


def test_a_short_batch_can_be_kept():
    data = ArrayData(X, batch_size=5, keep_short=True, shuffle=False)
    assert (len(data), data.dropped) == (5, 0) and rows(data.epoch(0))[-1] == [20, 21, 22]


def test_types():
    data = ArrayData(
        np.full((4, 1, 2, 2), 255, np.uint8),
        np.zeros(4, np.uint8),
        np.zeros(4, bool),
        np.zeros(4, np.float16),
        batch_size=2,
    )
    assert [a.dtype for a in next(data.epoch(0))] == [np.float32, np.int64, np.bool_, np.float32]
    assert next(data.epoch(0))[0].max() == 1
    torch = pytest.importorskip("torch")
    data = ArrayData(torch.ones(2, 2, requires_grad=True), batch_size=2)
    assert next(data.epoch(0))[0].sum() == 4


@pytest.mark.parametrize(
    ("arrays", "size", "match"),
    [
        ((), 1, "holds no arrays"),
        ((X, Y[:-1]), 1, "must be the number of samples"),
        ((np.float32(1),), 1, "must be the number"),
        ((X,), 24, "fewer than one batch of 24. Try"),
        ((X[:0],), 1, "has no samples"),
        ((X,), 0, "the batch size is 0"),
        ((np.array(["a", "b"]),), 1, "cannot take an array"),
        ((np.array([None, 1]),), 1, "cannot take an array"),
    ],
)
def test_bad_arrays(arrays, size, match):
    with pytest.raises(DataError, match=match):
        ArrayData(*arrays, batch_size=size)


def test_iterables():
    batches = [(X[:5], Y[:5]), (X[5:10], Y[5:10]), (X[10:13], Y[10:13])]
    data = IterableData(batches)
    assert isinstance(data, Data)
    assert rows(data.epoch(0)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12]]
    assert (data.batch_size, data.dropped, sizes_in(data)) == (5, 0, {5, 3})
    assert rows(data.epoch(1, start=1)) == [[5, 6, 7, 8, 9], [10, 11, 12]]
    made = IterableData(lambda epoch: [X[epoch : epoch + 2]])
    assert rows(made.epoch(3)) == [[3, 4]]
    named = next(IterableData([{"x": X[:2], "n": 3}]).epoch(0))
    assert named[0]["x"].shape == (2, 2) and len(named) == 1
    once = IterableData(iter(batches))
    assert len(list(once)) == 3
    for source, match in (
        (once, "read only once"),
        (IterableData([]), "has no batches"),
        (IterableData([3.0]), "cannot be counted"),
    ):
        with pytest.raises(DataError, match=match):
            list(source.epoch(1))
    with pytest.raises(DataError, match="cannot be iterated"):
        IterableData(3)


def test_a_dataloader_is_an_iterable():
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    data = IterableData(torch.utils.data.DataLoader(pairs, batch_size=4))
    assert len(list(data.epoch(0))) == len(list(data.epoch(1))) == 6 and data.dropped == 0
    assert sizes_in(data) == {4, 3}
    assert sizes_in(IterableData(torch.utils.data.DataLoader(pairs, batch_size=4, drop_last=True))) == {4}
    assert sizes_in(IterableData(torch.utils.data.DataLoader(pairs, batch_size=32))) == {23}
    assert sizes_in(IterableData(iter([X]))) == set()
    assert sizes_in(ArrayData(X, batch_size=5)) == {5} and sizes_in(ArrayData(X, batch_size=5, keep_short=True)) == {
        5,
        3,
    }


# ── digits ────────────────────────────────────────────────────────────────────────────────────────


def test_digits():
    pytest.importorskip("sklearn")
    data = load_data("digits", 64)
    x, y = next(data.train.epoch(0))
    assert x.shape == (64, 1, 28, 28) and x.dtype == np.float32 and y.dtype == np.int64
    assert len(data.classes) == 10
    assert data.test is not None and not data.notes
    train, test = data.train.arrays, data.test.arrays
    assert len(train[0]) + len(test[0]) == 1797 and abs(len(test[0]) - 360) < 6
    share = np.bincount(test[1]) / (np.bincount(test[1]) + np.bincount(train[1]))
    assert abs(share - 0.2).max() < 0.01  # stratified
    pixels = np.concatenate([train[0], test[0]])
    assert abs(pixels.mean()) < 1e-3 and abs(pixels.std() - 1) < 1e-3
    other = digits(64, seed=1)  # Another seed gives another order of the same samples.
    assert np.array_equal(other.train.arrays[0], train[0])
    assert not np.array_equal(next(other.train.epoch(0))[1], y)


def test_shifted_images():
    x = np.zeros((40, 2, 5, 6), np.float32)
    x[:, :, 2, 3] = 1
    data = ArrayData(x, np.arange(40), batch_size=10, shift=1)
    first = [batch[0] for batch in data.epoch(0)]
    places = {tuple(map(int, np.argwhere(image[0])[0])) for batch in first for image in batch}
    assert places == {(r, c) for r in (1, 2, 3) for c in (2, 3, 4)}
    assert all(np.array_equal(image[0], image[1]) for batch in first for image in batch)
    again = [batch[0] for batch in data.epoch(0, start=2)]
    assert all(np.array_equal(a, b) for a, b in zip(first[2:], again, strict=True))
    assert not np.array_equal(next(data.epoch(1))[0], first[0])
    with pytest.raises(DataError, match="cannot be shifted"):
        ArrayData(X, batch_size=2, shift=1)


def test_digits_are_grown_as_pytorch_does():
    torch = pytest.importorskip("torch")
    from handheld.data.load import bilinear

    x = np.random.default_rng(0).normal(size=(2, 8, 8))
    want = torch.nn.functional.interpolate(torch.tensor(x)[:, None], (28, 28), mode="bilinear")
    np.testing.assert_allclose(bilinear(8, 28) @ x @ bilinear(8, 28).T, want[:, 0], atol=1e-12)
    assert bilinear(1, 3).tolist() == [[1], [1], [1]]


# ── .npz ──────────────────────────────────────────────────────────────────────────────────────────


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", y=Y, x=X)
    data = load_data(str(tmp_path / "a.npz"), 2)
    x, y = next(data.train.epoch(0))
    assert x.shape == (2, 2) and y.dtype == np.int64
    assert data.test is not None and data.train.samples + data.test.samples == 23
    np.savez(tmp_path / "b.npz", X, X[:, 0], Y)
    assert len(next(npz(tmp_path / "b.npz", 2).train.epoch(0))) == 3
    np.savez(tmp_path / "c.npz", x_train=X, y_train=Y, x_test=X[:5], y_test=Y[:5])
    data = npz(tmp_path / "c.npz", 3)
    assert (data.train.samples, data.train.dropped, data.test.samples, data.test.dropped) == (23, 2, 5, 0)
    data = npz(tmp_path / "c.npz", 6)
    assert data.test is not None and (data.test.samples, len(data.test), data.test.dropped) == (5, 1, 0)
    np.savez(tmp_path / "d.npz", x=X[:2], y=Y[:2])
    assert "no test set: no samples are held out" in npz(tmp_path / "d.npz", 1).notes[-1]
    np.savez(tmp_path / "d.npz", x=X, y=X)
    assert npz(tmp_path / "d.npz", 2, test=0.5).test.samples == 12
    assert npz(tmp_path / "d.npz", 2, test=0).test is None


def test_bad_npz(tmp_path):
    path = tmp_path / "a.npz"
    for labels, match in (
        (np.array([None] * 23), "array 'y' of .*a.npz holds Python objects. Try: arrays of numb"),
        (np.array(["cat"] * 23), "array 'y' of .*a.npz has type <U3.* Try: one number per class"),
        (Y.astype(np.complex64), "array 'y' of .*a.npz has type complex64.* two channels"),
    ):
        np.savez(path, x=X, y=labels)
        with pytest.raises(DataError, match=match):
            npz(path, 2)
    for data, match in ((b"", "is empty"), (b"hello" * 99, "is not a .npz file")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=match) as error:
            npz(path, 2)
        assert "pickle" not in str(error.value)
    good = tmp_path / "good.npz"
    np.savez(good, x=X, y=Y)
    for data in (b"", b"PK", good.read_bytes()[:-30], b"\x93NUMPY"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npz"):
            npz(path, 2)
    np.savez(path)
    with pytest.raises(DataError, match="holds no arrays"):
        npz(path, 2)
    np.savez(path, x=X, y=Y[:-1])
    with pytest.raises(DataError, match="must be the number of samples"):
        npz(path, 2)
    with pytest.raises(DataError, match=r"1\.5"):
        npz(good, 2, test=1.5)


# ── images ────────────────────────────────────────────────────────────────────────────────────────


def folder(path, count: int = 5, kind: str = "png"):
    """A folder with two classes: dark and light images of several sizes and modes."""
    image = pytest.importorskip("PIL.Image")
    for label, level in (("dark", 40), ("light", 200)):
        (path / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((10 + i, 12, 3), level, np.uint8)
            picture = image.fromarray(pixels)
            (picture.convert("L") if i == 1 else picture).save(path / label / f"{i}.{kind}")
    (path / ".hidden").mkdir()
    return path


def test_images(tmp_path):
    data = load_data(str(folder(tmp_path / "set")), 2, size=8)
    assert data.classes == ("dark", "light") and isinstance(data.train, ImageData)
    assert data.train.samples == 8 and data.test.samples == 2
    for x, y in data.train.epoch(0):
        assert x.shape == (2, 3, 8, 8) and x.dtype == np.float32 and y.dtype == np.int64
        np.testing.assert_allclose(x[:, 0, 0, 0], np.where(y, 200, 40) / 255, atol=0.01)
    x, _ = next(images(tmp_path / "set", 2, size=6, gray=True).train.epoch(0))
    assert x.shape == (2, 1, 6, 6)


def test_images_with_their_own_test_set(tmp_path):
    folder(tmp_path / "set" / "train", kind="jpg")
    folder(tmp_path / "set" / "val", 2)
    data = images(tmp_path / "set", 3)
    assert data.train.samples == 10 and data.test.samples == 4
    (tmp_path / "set" / "val" / "dark").rename(tmp_path / "set" / "val" / "grey")
    with pytest.raises(DataError, match="same sub-folders"):
        images(tmp_path / "set", 3)


def test_bad_images(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no sub-folders with images"):
        load_data(str(tmp_path), 2)
    path = folder(tmp_path / "set")
    (path / "dark" / "0.png").write_bytes((path / "dark" / "0.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"dark.0\.png cannot be read as an image"):
        list(images(path, 1, test=0).train.epoch(0))
    with pytest.raises(DataError, match="images of 0x0 pixels"):
        images(path, 2, size=0, skip_bad=True)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"needs pillow.*pip install pillow"):
        images(path, 2)


def test_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"scikit-learn.*pip install scikit-learn"):
        digits(8)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def test_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("äbcdefghij" * 20)
    data = load_data(str(path), 2, length=7)
    assert len(data.classes) == 256 and isinstance(data.train, TextData)
    x, y = next(data.train.epoch(0))
    assert x.shape == y.shape == (2, 7) and x.dtype == np.int64
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    data = text(path, 2, length=7, tokens="char", test=0.25)
    assert data.classes == tuple("bcdefghijä") and data.train.samples == 149 // 7
    first = next(TextData(data.train.tokens, length=7, batch_size=2, shuffle=False).epoch(0))[0]
    assert "".join(data.classes[i] for i in first.ravel()) == "äbcdefghijäbcd"
    assert data.test.samples == 49 // 7 and data.test.shuffle is False


def test_bad_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\xfe short")
    for options, match in (
        ({"length": 64}, "has no samples"),
        ({"length": 0}, "windows of 0"),
        ({"tokens": "char"}, "cannot be read as text"),
        ({"tokens": "word"}, "byte or char"),
        ({"test": -1}, "the share of the test set is"),
    ):
        with pytest.raises(DataError, match=match):
            text(path, 2, **options)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="has no samples"):
        text(path, 2)


def test_unknown_data(tmp_path):
    with pytest.raises(DataError, match=r"'digit': no such file or folder. Did you mean digits.*\? Try: digits, pydoc"):
        load_data("digit", 2)
    with pytest.raises(DataError, match=r"no such file or folder. Try: digits, pydoc"):
        load_data(str(Path("/") / "q" / "none"), 2)
    (tmp_path / "table.csv").touch()
    with pytest.raises(DataError, match=r"Did you mean \S+/table\.csv\? Try"):
        load_data(str(tmp_path / "tabel.csv"), 2)
    (tmp_path / "a.xml").write_text("1,2")
    with pytest.raises(DataError, match=r"a\.xml is not a known kind of data"):
        load_data(str(tmp_path / "a.xml"), 2)
