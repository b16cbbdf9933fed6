"""Data sets of image folders: one sub-folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from handheld.data.augment import Augment, Normalise, Normalising
from handheld.data.batches import Array, stratified
from handheld.data.dataset import SPLIT, DataFacts, DataSet, class_numbers, listed, no_test_set
from handheld.data.image_files import ImageData, ImageFiles, classes_in, describe
from handheld.data.readable import check_images, without
from handheld.errors import DataError

#: Sub-folders that are a training set and a test set.
SPLITS = (("train", "test"), ("train", "val"), ("train", "valid"), ("training", "testing"))


def images(
    folder: str | Path,
    batch_size: int,
    *,
    seed: int = 0,
    test: float = 0.2,
    size: int | tuple[int, int] = 32,
    gray: bool = False,
    augment: str | Augment = "",
    normalise: Normalising = False,
    skip_bad: bool = False,
    like: DataFacts | None = None,
) -> DataSet:
    """One sub-folder per class, or two such folders named train and test.

    `augment` changes training images only. `skip_bad` leaves out files that cannot be read.
    With `like`, classes have the numbers that a step file gave them.
    """
    folder = Path(folder)
    own = next(((folder / a, folder / b) for a, b in SPLITS if (folder / a).is_dir() and (folder / b).is_dir()), None)
    if own is not None:
        parts = [classes_in(part) for part in own]
        bad, found = check_images(folder, [path for part in parts for path in part.files], skip_bad)
        first, second = (without(part, bad) for part in parts)
        if second.classes != first.classes:
            raise DataError(
                f"{own[0]} has the classes {', '.join(first.classes)} and {own[1]} "
                f"{', '.join(second.classes)}. Try: the same sub-folders in both"
            )
        notes = [*found, *first.notes(own[0]), *second.notes(own[1])]
    else:
        every = classes_in(folder)
        bad, found = check_images(folder, every.files, skip_bad)
        every = without(every, bad)
        first, second = (_part(every, indices) for indices in stratified(every.labels, test, SPLIT))
        notes = [*found, *every.notes(folder)]
    pixels = (size, size) if isinstance(size, int) else size
    options: dict[str, Any] = {"batch_size": batch_size, "size": pixels, "gray": gray}
    classes, numbers, changed = class_numbers(str(folder), first.classes, like)
    labels, held_labels = ([numbers[i] for i in part.labels] for part in (first, second))
    data = ImageData(first.files, labels, seed=seed, augment=augment, name=f"{folder} (training)", **options)
    did = [*describe([*first.files, *second.files], pixels, gray), f"classes {listed(classes)}"]
    told = [f"{folder}: {'; '.join(did)}", *changed, *notes]
    facts = DataFacts("images", tuple(classes), image_size=pixels, gray=gray)
    chosen = Normalise.given(normalise)
    if chosen is True:
        chosen, constant = data.measure()
        told += filter(None, (constant,))
    if isinstance(chosen, Normalise):
        chosen.check((0, 1 if gray else 3, *pixels), np.dtype(np.float32), str(folder))
        data.normalise, facts = chosen, facts.normalised(chosen)
        told.append(f"{folder}: normalised with {chosen}")
    few = no_test_set(len(second.files))
    told += filter(None, (few,))
    options |= {"normalise": data.normalise, "shuffle": False, "keep_short": True, "name": f"{folder} (test)"}
    held = None if few else ImageData(second.files, held_labels, **options)
    return DataSet(str(folder), data, held, facts, tuple(told))


def _part(every: ImageFiles, indices: Array) -> ImageFiles:
    return ImageFiles(every.classes, [every.files[i] for i in indices], [every.labels[i] for i in indices])
