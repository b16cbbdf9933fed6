"""Flips, crops and normalisation: what they compute, and that they repeat exactly."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.data import ArrayData, Augment, Normalise, load_data
from handheld.errors import DataError

X = np.arange(40 * 3 * 8 * 8, dtype=np.float32).reshape(40, 3, 8, 8)
Y = np.arange(40) % 4


def test_a_flip_mirrors_about_half_of_the_images():
    data = ArrayData(X, np.arange(40), batch_size=10, augment="flip")
    mirrored = 0
    for x, numbers in data.epoch(0):
        for image, i in zip(x, numbers, strict=True):
            if not np.array_equal(image, X[i]):
                np.testing.assert_array_equal(image, X[i][:, :, ::-1])
                mirrored += 1
    assert 10 < mirrored < 30


def test_a_crop_cuts_from_the_padded_image():
    x = np.zeros((60, 1, 16, 16), np.float32)
    x[:, :, 8, 8] = 1
    places = set()
    for batch, _ in ArrayData(x, np.arange(60), batch_size=20, augment="crop").epoch(0):
        places |= {tuple(map(int, np.argwhere(image[0])[0])) for image in batch}
    assert {abs(r - 8) for r, _ in places} == {0, 1, 2}  # An eighth of 16 pixels.
    batch = next(ArrayData(x, np.arange(60), batch_size=60, augment="crop=7").epoch(0))[0]
    assert max(abs(int(np.argwhere(image[0])[0][0]) - 8) for image in batch) == 7


def test_epoch_and_batch_decide_the_augmentation():
    data = ArrayData(X, Y, batch_size=10, augment="flip,crop", seed=3)
    again = ArrayData(X, Y, batch_size=10, augment="flip,crop", seed=3)
    first = [x for x, _ in data.epoch(2)]
    for a, b in zip(first[1:], again.epoch(2, start=1), strict=True):
        np.testing.assert_array_equal(a, b[0])
    assert not np.array_equal(first[0], next(data.epoch(3))[0])
    assert first[0].flags.c_contiguous and first[0].dtype == np.float32


def test_normalise_gives_mean_0_and_deviation_1_per_channel():
    random = np.random.default_rng(0)
    x = (random.standard_normal((50, 3, 5, 4)) * [[[1]], [[5]], [[0.1]]] + [[[7]], [[-3]], [[1e6]]]).astype(np.float32)
    by, note = Normalise.of([x[:20], x[20:]], "x")
    assert not note and len(by.mean) == 3
    np.testing.assert_allclose(by.mean, x.mean((0, 2, 3), np.float64), rtol=1e-9)
    np.testing.assert_allclose(by.std, x.std((0, 2, 3), np.float64), rtol=1e-6)
    done = next(ArrayData(x, batch_size=50, normalise=by).epoch(0))[0]
    np.testing.assert_allclose(done[:, :2].mean((0, 2, 3)), 0, atol=1e-4)
    np.testing.assert_allclose(done[:, :2].std((0, 2, 3)), 1, atol=1e-4)
    columns, note = Normalise.of([np.array([[1.0, 5], [3, 5]])], "t")
    assert columns == Normalise((2, 5), (1, 1)) and "columns 1 are constant" in note
    assert len(Normalise.of([np.zeros((2, 3, 4), np.float32)], "s")[0].mean) == 1


def test_torchvision_means_the_same():
    torch = pytest.importorskip("torch")
    x, mean, std = np.random.default_rng(0).random((4, 3, 6, 6), np.float32), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    want = (torch.tensor(x) - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    np.testing.assert_allclose(Normalise(mean, std)(x), want, rtol=1e-6)


def test_test_data_gets_the_numbers_of_the_training_data(tmp_path):
    random = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=random.standard_normal((100, 4)) * 3 + 9, y=np.arange(100) % 2)
    data = load_data(str(tmp_path / "a.npz"), 10, normalise=True)
    assert data.train.normalise == data.test.normalise == data.facts.normalise
    np.testing.assert_allclose(data.facts.mean, data.train.arrays[0].mean(0), rtol=1e-5)
    assert any("normalised with mean" in note for note in data.notes)
    given = load_data(str(tmp_path / "a.npz"), 10, normalise=([9.0], [3.0]))
    np.testing.assert_allclose(
        next(given.test.epoch(0))[0], (given.test.arrays[0][:10] - np.float32(9)) / np.float32(3), rtol=1e-6
    )
    again = load_data(str(tmp_path / "a.npz"), 10, like=given.facts)
    assert again.facts.mean == (9.0,)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Augment.parse("flop"), "no augmentation 'flop'. Try: flip"),
        (lambda: Augment.parse("crop=x"), "no augmentation 'crop=x'"),
        (lambda: Augment.parse("crop=0"), "no augmentation 'crop=0'"),
        (lambda: ArrayData(X[:, 0, 0], batch_size=2, augment="flip"), "cannot be augmented with flip"),
        (lambda: ArrayData(X, batch_size=2, augment="crop=8"), "too much for images of 8x8"),
        (lambda: Normalise((1.0,), (1.0, 2.0)), "as many means"),
        (lambda: Normalise((1.0,), (0.0,)), "above 0"),
        (
            lambda: ArrayData(X, batch_size=2, normalise=Normalise((1, 2), (1, 2))),
            "has 3 channels or columns.* 2 means",
        ),
        (
            lambda: ArrayData(Y, batch_size=2, normalise=Normalise((1,), (2,))),
            "holds int64, which cannot be normalised",
        ),
        (lambda: load_data("pydoc", 2, normalise=True), "tokens cannot be normalised"),
        (lambda: load_data("pydoc", 2, augment="flip"), "holds no images"),
        (lambda: load_data("pydoc", 2, label="y"), "has no columns"),
    ],
)
def test_what_is_not_possible(call, match):
    with pytest.raises(DataError, match=match):
        call()
