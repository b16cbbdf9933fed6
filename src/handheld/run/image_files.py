"""Images in folders, one folder per class: lists the files, and reads each batch when it is needed."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.errors import DataError
from handheld.run.batches import Array, Indexed, Indices, checksum

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})


class ImageData(Indexed):
    """Image files, read when their batch is needed: x[n, channels, size, size] in [0, 1], and labels."""

    def __init__(
        self,
        files: list[Path],
        labels: list[int],
        *,
        batch_size: int,
        size: int = 32,
        gray: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        name: str = "the images",
    ) -> None:
        _pillow()
        if size < 1:
            raise DataError(f"images of {size} pixels are not possible. Try: size 32")
        self.files, self.labels = files, np.asarray(labels, np.int64)
        self.size, self.gray = size, gray
        super().__init__(len(files), batch_size, shuffle=shuffle, seed=seed, keep_short=False, name=name)

    @cached_property
    def content(self) -> int:
        """A checksum of the files' names, sizes and classes. Reading all files would take too long."""
        sizes = np.array([path.stat().st_size for path in self.files], np.int64)
        names = np.frombuffer("\n".join(path.name for path in self.files).encode(), np.uint8)
        return checksum(names, sizes, self.labels)

    def take(self, indices: Indices, random: np.random.Generator) -> tuple[Array, ...]:
        pixels = np.stack([self._read(self.files[i]) for i in indices])
        if self.gray:
            pixels = pixels[..., None]
        x = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32) / np.float32(255)
        return x, self.labels[indices]

    def _read(self, path: Path) -> npt.NDArray[np.uint8]:
        pillow = _pillow()
        try:
            with pillow.open(path) as image:
                flat = image.convert("L" if self.gray else "RGB")
                sized = flat.resize((self.size, self.size), pillow.Resampling.BILINEAR)
                return np.asarray(sized, np.uint8)
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise DataError(
                f"{path} cannot be read as an image: {error}. Try: remove it, or save it again as PNG"
            ) from error


def classes_in(folder: Path) -> tuple[list[str], list[Path], list[int]]:
    """The classes, the files, and the class of each file, in the same order on every system."""
    by_class: dict[str, list[Path]] = {}
    for inside in sorted(p for p in folder.iterdir() if p.is_dir() and p.name[:1] != "."):
        files = sorted(p for p in inside.rglob("*") if p.suffix.lower() in SUFFIXES)
        if files:
            by_class[inside.name] = files
    if not by_class:
        raise DataError(
            f"{folder} has no sub-folders with images. Try: one sub-folder per class, with .png or .jpg files in it"
        )
    labels = [i for i, files in enumerate(by_class.values()) for _ in files]
    return list(by_class), [path for files in by_class.values() for path in files], labels


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading images needs pillow, which is not installed. Try: pip install pillow") from error
    return Image
