"""Finds the pictures of a folder that cannot be read, before a training starts and fails at one of them."""

from __future__ import annotations

import time
from pathlib import Path

from handheld.data.dataset import listed
from handheld.data.image_files import UNREADABLE, ImageFiles, pillow
from handheld.errors import DataError

#: How long pictures are decoded to check them. Without a limit, a large folder would delay every training.
CHECK_S = 10.0
#: Files that an error or a note names.
_NAMED = 5


def bad_images(files: list[Path], limit_s: float) -> tuple[dict[Path, str], int]:
    """The files that cannot be read, each with the reason, and how many files were decoded.

    After the time limit, only the headers are read.
    """
    module = pillow()
    bad: dict[Path, str] = {}
    decoded, end = 0, time.monotonic() + limit_s
    for path in files:
        try:
            with module.open(path) as image:
                if time.monotonic() < end:
                    decoded += 1
                    image.draft("RGB", (32, 32))  # A JPEG is decoded to a small picture, which is several times faster.
                    image.load()
        except (*UNREADABLE, module.DecompressionBombError) as error:
            bad[path] = str(error)
    return bad, decoded


def check_images(folder: Path, files: list[Path], skip_bad: bool) -> tuple[frozenset[Path], list[str]]:
    """The files to leave out, and notes. Raises DataError for files that cannot be read, unless they are skipped."""
    bad, decoded = bad_images(files, float("inf") if skip_bad else CHECK_S)
    named = [f"{path} ({reason})" for path, reason in list(bad.items())[:_NAMED]]
    more = f" and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    if len(bad) == len(files) > 1:
        raise DataError(f"none of the {len(bad):,} images of {folder} can be read: {', '.join(named)}{more}. Try: PNG")
    if bad and (not skip_bad or len(files) == 1):
        path, reason = next(iter(bad.items()))
        if len(bad) == 1:
            ways = "remove it, or save it again as PNG" + ("" if len(files) == 1 else ", or --skip-bad to leave it out")
            raise DataError(f"{path} cannot be read as an image: {reason}. Try: {ways}")
        raise DataError(
            f"{len(bad):,} of {len(files):,} images of {folder} cannot be read: {', '.join(named)}{more}. "
            "Try: remove them, or save them again as PNG, or --skip-bad to leave them out"
        )
    notes = [f"{folder}: left out {len(bad):,} of {len(files):,} images: {', '.join(named)}{more}"] if bad else []
    if decoded < len(files):
        notes.append(
            f"{folder}: checked {decoded:,} of {len(files):,} images in {CHECK_S:g} s; the others are checked when "
            "they are needed. --skip-bad checks all of them first"
        )
    return frozenset(bad), notes


def without(found: ImageFiles, bad: frozenset[Path]) -> ImageFiles:
    """The images of a folder without bad ones. A class that has no image left is no class."""
    kept = [(path, found.classes[k]) for path, k in zip(found.files, found.labels, strict=True) if path not in bad]
    left = {name for _, name in kept}
    classes = [name for name in found.classes if name in left]
    if not kept:
        raise DataError(f"no image of the classes {listed(found.classes)} can be read. Try: PNG files")
    empty = [*found.empty, *(name for name in found.classes if name not in left)]
    labels = [classes.index(name) for _, name in kept]
    return ImageFiles(classes, [path for path, _ in kept], labels, found.skipped, found.outside, empty)
