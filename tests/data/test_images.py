"""Images: everything that reading changes is reported, and formats beside PNG and JPEG are read."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.data import DataFacts, ImageData, images
from handheld.errors import DataError

Image = pytest.importorskip("PIL.Image")


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels)).save(path, **options)


def colour(height: int, width: int, level: int = 90):
    return np.full((height, width, 3), level, np.uint8)


def test_sizes_and_classes_are_reported(tmp_path):
    for name in ("circle", "square"):
        for i in range(3):
            save(tmp_path / name / f"{i}.png", colour(48, 48))
    data = images(tmp_path, 1)
    assert data.notes[0] == f"{tmp_path}: resized to 32×32 from 48×48; classes circle, square"
    assert images(tmp_path, 1, size=48).notes == (f"{tmp_path}: classes circle, square",)
    save(tmp_path / "square" / "9.png", colour(40, 90))
    assert "resized to 48×96 from 48×48 to 40×90" in images(tmp_path, 1, size=(48, 96)).notes[0]
    assert "ratio of height to width changed: 1 image;" in images(tmp_path, 1).notes[0]
    assert next(images(tmp_path, 1, size=(24, 8)).train.epoch(0))[0].shape == (1, 3, 24, 8)
    assert data.facts == DataFacts("images", ("circle", "square"), image_size=(32, 32))


def test_what_is_converted_is_counted(tmp_path):
    save(tmp_path / "a" / "0.png", colour(32, 32)[..., 0])
    save(tmp_path / "a" / "1.png", np.full((32, 32, 4), 100, np.uint8))
    save(tmp_path / "a" / "2.png", np.full((32, 32), 40_000, np.uint16))
    save(tmp_path / "b" / "3.webp", colour(32, 32))
    save(tmp_path / "b" / "4.bmp", colour(32, 32))
    frames = [Image.fromarray(colour(32, 32, level)) for level in (10, 200)]
    frames[0].save(tmp_path / "b" / "5.gif", save_all=True, append_images=frames[1:])
    note = images(tmp_path, 1, test=0).notes[0]
    for part in (
        "gray repeated in three channels: 2 images",
        "alpha channel dropped: 1 image",
        "16 bits reduced to 8: 1 image",
        "only the first of several frames used: 1 image",
    ):
        assert part in note, note
    assert "made gray: 4 images" in images(tmp_path, 1, test=0, gray=True).notes[0]
    data = ImageData([tmp_path / "a" / "2.png"], [0], batch_size=1)
    np.testing.assert_allclose(next(data.epoch(0))[0], 40_000 / 65_535, atol=0.003)
    data = ImageData([tmp_path / "b" / "5.gif"], None, batch_size=1)
    (only,) = next(data.epoch(0))
    assert only.max() < 0.1


def test_photos_are_turned_upright(tmp_path):
    pixels = colour(16, 8)
    pixels[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was turned: the top of the picture is on the right.
    save(tmp_path / "a" / "0.jpg", pixels, exif=exif)
    data = images(tmp_path, 1, test=0, size=(8, 16))
    assert data.notes[0] == f"{tmp_path}: turned upright (EXIF): 1 image; classes a"
    picture = next(data.train.epoch(0))[0][0, 0]
    assert picture[1].mean() > 0.9 and picture[6].mean() < 0.5


def test_what_is_not_read_is_counted(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / name / "0.png", colour(32, 32))
        (tmp_path / name / "notes.txt").write_text("x")
        (tmp_path / name / ".DS_Store").write_text("x")
    (tmp_path / "b" / "clip.mp4").write_text("x")
    (tmp_path / "c").mkdir()
    save(tmp_path / "loose.png", colour(4, 4))
    notes = " ".join(images(tmp_path, 1, test=0).notes)
    assert "skipped because they are not images: 3 files (2 .txt, 1 .mp4)" in notes
    assert "skipped outside of the class sub-folders: 1 image" in notes
    assert "sub-folders without images are no classes: c" in notes
    with pytest.raises(DataError, match=r"has images, but none in a sub-folder\. Try: one sub-folder per class"):
        (tmp_path / "flat").mkdir()
        save(tmp_path / "flat" / "1.png", colour(4, 4))
        images(tmp_path / "flat", 1)


def test_a_damaged_image_is_named_before_the_training(tmp_path):
    save(tmp_path / "a" / "0.png", colour(32, 32))
    (tmp_path / "a" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a.1\.png cannot be read as an image"):
        images(tmp_path, 1, test=0)


def test_all_damaged_images_are_named_at_once_or_left_out(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for i in range(12):
        for name in ("a", "b"):
            save(tmp_path / name / f"{i}.jpg", random.integers(0, 255, (32, 32, 3), np.uint8))
    for i in range(6):  # The headers are whole: only decoding shows that these are cut off.
        path = tmp_path / "a" / f"{i}.jpg"
        path.write_bytes(path.read_bytes()[:-300])
    save(tmp_path / "c" / "0.png", colour(4, 4))
    (tmp_path / "c" / "0.png").write_bytes(b"no picture")
    named = r"7 of 25 images of .* cannot be read: .*a.0\.jpg \(.*truncated.*a.2\.jpg.* and 2 more\. Try: .*--skip-bad"
    with pytest.raises(DataError, match=named):
        images(tmp_path, 1, test=0)
    data = images(tmp_path, 1, test=0, skip_bad=True)
    assert data.train.samples == 18 and data.classes == ("a", "b")
    notes = " ".join(data.notes)
    assert "left out 7 of 25 images" in notes and "without images are no classes: c" in notes
    assert len(list(data.train.epoch(0))) == 18
    monkeypatch.setattr("handheld.data.readable.CHECK_S", 0.0)
    (tmp_path / "c" / "0.png").unlink()
    notes = " ".join(images(tmp_path, 1, test=0).notes)
    assert "checked 0 of 24 images in 0 s" in notes and "--skip-bad checks all" in notes


def test_normalise_and_augment(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        for i in range(10):
            save(tmp_path / name / f"{i}.png", random.integers(0, 255, (16, 16, 3), np.uint8))
    data = images(tmp_path, 4, size=16, normalise=True, augment="flip,crop")
    every = np.concatenate([data.train.pixels(np.arange(data.train.samples))])
    np.testing.assert_allclose(data.facts.mean, every.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(data.facts.std, every.std((0, 2, 3)), rtol=1e-4)
    assert not data.test.augment and data.test.normalise == data.train.normalise
    assert data.train.prepared.startswith("16x16 RGB; flip,crop; mean")
    first = next(data.train.epoch(1))[0]
    np.testing.assert_array_equal(
        first, next(images(tmp_path, 4, size=16, normalise=True, augment="flip,crop").train.epoch(1))[0]
    )
    plain = images(tmp_path, 4, size=16)
    assert not np.array_equal(first, next(plain.train.epoch(1))[0])


def test_classes_keep_the_numbers_of_the_file(tmp_path):
    for name in ("circle", "triangle"):
        for i in range(5):
            save(tmp_path / "few" / name / f"{i}.png", colour(32, 32))
    like = DataFacts("images", ("circle", "square", "triangle"), image_size=(32, 32))
    data = images(tmp_path / "few", 1, like=like)
    assert data.classes == like.classes and set(data.train.labels) == {0, 2}
    assert any("no samples of the model's classes square" in note for note in data.notes)
    other = images(tmp_path / "few", 1, like=DataFacts("images", ("cat", "dog")))
    assert other.classes == ("circle", "triangle")
    assert any("are not those of the model (cat, dog): they replace them" in note for note in other.notes)
