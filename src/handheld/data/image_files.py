"""Images in folders, one folder per class: lists the files, and reads each batch when it is needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from handheld.data.augment import Augment, Normalise
from handheld.data.batches import Array, Indexed, Indices, checksum
from handheld.data.dataset import listed
from handheld.errors import DataError

#: Files that Pillow reads and that hold pictures. Of an animation, the first frame is used.
SUFFIXES = frozenset({
    ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2",
})  # fmt: skip
#: 16 bits per pixel, and 32 bits in which older versions of Pillow keep 16.
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_ORIENTATION = 0x0112
#: What Pillow raises for a file that it cannot read.
UNREADABLE = (OSError, ValueError, SyntaxError)
#: Images that are read at once to compute a mean.
_CHUNK = 64


class ImageData(Indexed):
    """Image files, read when their batch is needed: x[n, channels, height, width] in [0, 1], and labels.

    `size` is the height and width in pixels, one number or two. Images are turned upright as their camera says, made
    RGB (or gray), resized, augmented (`"flip,crop"`) and normalised, in this order. Without labels, a batch is x alone.
    """

    def __init__(
        self,
        files: list[Path],
        labels: list[int] | None,
        *,
        batch_size: int,
        size: int | tuple[int, int] = 32,
        gray: bool = False,
        augment: str | Augment = "",
        normalise: Normalise | None = None,
        shuffle: bool = True,
        seed: int = 0,
        keep_short: bool = False,
        name: str = "the images",
    ) -> None:
        pillow()
        self.height, self.width = (size, size) if isinstance(size, int) else size
        if self.height < 1 or self.width < 1:
            raise DataError(f"images of {self.height}x{self.width} pixels are not possible. Try: size 32")
        self.files, self.labels = files, None if labels is None else np.asarray(labels, np.int64)
        self.gray = gray
        shape = (len(files), 1 if gray else 3, self.height, self.width)
        self.augment = Augment.parse(augment) if isinstance(augment, str) else augment
        self.augment.check(shape, name)
        self.normalise = normalise
        if normalise is not None:
            normalise.check(shape, np.dtype(np.float32), name)
        super().__init__(len(files), batch_size, shuffle=shuffle, seed=seed, keep_short=keep_short, name=name)

    @property
    def prepared(self) -> str:
        """What happens to each image, for checkpoints: the same files with another size are other data."""
        colours = "gray" if self.gray else "RGB"
        return "; ".join(
            filter(None, (f"{self.height}x{self.width} {colours}", str(self.augment), str(self.normalise or "")))
        )

    @cached_property
    def content(self) -> int:
        """A checksum of the files' names, sizes and classes. Reading all files would take too long."""
        sizes = np.array([path.stat().st_size for path in self.files], np.int64)
        names = np.frombuffer("\n".join(path.name for path in self.files).encode(), np.uint8)
        return checksum(names, sizes, *(() if self.labels is None else (self.labels,)))

    def take(self, indices: Indices, random: np.random.Generator) -> tuple[Array, ...]:
        x = self.pixels(indices)
        if self.augment:
            x = self.augment(x, 0, random)
        if self.normalise is not None:
            x = self.normalise(x)
        return (x,) if self.labels is None else (x, self.labels[indices])

    def pixels(self, indices: Indices) -> Array:
        """The images before augmentation and normalisation."""
        pixels = np.stack([self._read(self.files[i]) for i in indices])
        if self.gray:
            pixels = pixels[..., None]
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32) / np.float32(255)

    def measure(self) -> tuple[Normalise, str]:
        """Mean and standard deviation per channel over all images, and a note about constant channels."""
        starts = range(0, self.samples, _CHUNK)
        parts = (self.pixels(np.arange(i, min(i + _CHUNK, self.samples))) for i in starts)
        return Normalise.of(parts, self.name)

    def _read(self, path: Path) -> npt.NDArray[np.uint8]:
        module = pillow()
        from PIL import ImageOps

        try:
            with module.open(path) as image:
                upright = ImageOps.exif_transpose(image)
                if upright.mode in _DEEP:
                    upright = module.fromarray((np.asarray(upright, np.float32) / 257).round().astype(np.uint8))
                flat = upright.convert("L" if self.gray else "RGB")
                if flat.size != (self.width, self.height):
                    flat = flat.resize((self.width, self.height), module.Resampling.BILINEAR)
                return np.asarray(flat, np.uint8)
        except (*UNREADABLE, module.DecompressionBombError) as error:
            raise _unreadable(path, error) from error


@dataclass
class ImageFiles:
    """The classes of a folder, its files, the class of each file, and what else is in the folder."""

    classes: list[str]
    files: list[Path]
    labels: list[int]
    skipped: Counter[str] = field(default_factory=Counter)
    outside: int = 0
    empty: list[str] = field(default_factory=list)

    def notes(self, folder: Path) -> list[str]:
        """What of the folder was not used."""
        notes = []
        if self.skipped:
            notes.append(skipped_note(folder, self.skipped))
        if self.outside:
            notes.append(f"{folder}: skipped outside of the class sub-folders: {_count(self.outside, 'image')}")
        if self.empty:
            notes.append(f"{folder}: sub-folders without images are no classes: {listed(self.empty)}")
        return notes


def classes_in(folder: Path) -> ImageFiles:
    """The classes, the files, and the class of each file, in the same order on every system."""
    by_class: dict[str, list[Path]] = {}
    found = ImageFiles([], [], [])
    for entry in sorted(p for p in folder.iterdir() if p.name[:1] != "."):
        if entry.is_dir():
            files = images_below(entry, found.skipped)
            if files:
                by_class[entry.name] = files
            else:
                found.empty.append(entry.name)
        elif entry.suffix.lower() in SUFFIXES:
            found.outside += 1
    if not by_class:
        what = "images, but none in a sub-folder" if found.outside else "no sub-folders with images"
        raise DataError(f"{folder} has {what}. Try: one sub-folder per class, with .png or .jpg files in it")
    found.classes = list(by_class)
    found.labels = [i for i, files in enumerate(by_class.values()) for _ in files]
    found.files = [path for files in by_class.values() for path in files]
    return found


def images_below(folder: Path, skipped: Counter[str]) -> list[Path]:
    """The image files in a folder and its sub-folders. Other files are counted by suffix, hidden ones are ignored."""
    files = []
    for path in sorted(folder.rglob("*")):
        if any(part[:1] == "." for part in path.relative_to(folder).parts) or path.is_dir():
            continue
        if path.suffix.lower() in SUFFIXES:
            files.append(path)
        else:
            skipped[path.suffix.lower()] += 1
    return files


def skipped_note(folder: Path, skipped: Counter[str]) -> str:
    kinds = ", ".join(f"{n} {suffix or 'without a suffix'}" for suffix, n in skipped.most_common(6))
    return f"{folder}: skipped because they are not images: {_count(sum(skipped.values()), 'file')} ({kinds})"


def describe(files: list[Path], size: tuple[int, int], gray: bool) -> list[str]:
    """What reading these files with this size changes. Only their headers are read."""
    module = pillow()
    sizes: Counter[tuple[int, int]] = Counter()
    counts: Counter[str] = Counter()
    for path in files:
        try:
            with module.open(path) as image:
                turned = image.getexif().get(_ORIENTATION, 1) if path.suffix.lower() not in (".gif", ".bmp") else 1
                width, height = image.size
                sizes[(height, width) if turned < 5 else (width, height)] += 1
                counts["turned"] += turned not in (0, 1)
                counts["alpha"] += image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
                counts["deep"] += image.mode in _DEEP
                counts["gray"] += image.mode in ("1", "L", "LA", *_DEEP)
                counts["frames"] += getattr(image, "n_frames", 1) > 1
        except (*UNREADABLE, module.DecompressionBombError) as error:
            raise _unreadable(path, error) from error
    notes = [f"resized to {_by(size)} {_range(sizes)}"] if set(sizes) != {size} else []
    # A ratio that differs by less than a pixel is rounding.
    stretched = sum(n for (h, w), n in sizes.items() if abs(h * size[1] - w * size[0]) > max(size))
    coloured = len(files) - counts["gray"]
    for number, what in (
        (stretched, "ratio of height to width changed"),
        (coloured if gray else 0, "made gray"),
        (0 if gray else counts["gray"], "gray repeated in three channels"),
        (counts["alpha"], "alpha channel dropped"),
        (counts["turned"], "turned upright (EXIF)"),
        (counts["deep"], "16 bits reduced to 8"),
        (counts["frames"], "only the first of several frames used"),
    ):
        if number:
            notes.append(f"{what}: {_count(number, 'image')}")
    return notes


def _range(sizes: Counter[tuple[int, int]]) -> str:
    ordered = sorted(sizes, key=lambda s: (s[0] * s[1], s))
    return f"from {_by(ordered[0])}" + (f" to {_by(ordered[-1])}" if len(ordered) > 1 else "")


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as an image: {error}. Try: remove it, or save it again as PNG")


def pillow() -> Any:
    """The image module of Pillow, which is an optional dependency."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading images needs pillow, which is not installed. Try: pip install pillow") from error
    return Image
