"""Data sets: arrays, image folders, tables and text as epochs of batches. Needs no PyTorch.

`load_data` reads what a user types as `--data`. The classes are for Python code.
"""

from __future__ import annotations

from handheld.data.augment import Augment, Normalise
from handheld.data.batches import ArrayData, Batch, Data, Indexed, IterableData
from handheld.data.dataset import DataFacts, DataSet
from handheld.data.folders import images
from handheld.data.image_files import ImageData
from handheld.data.load import digits, load_data, npz
from handheld.data.tables import table
from handheld.data.text_files import TextData, text

__all__ = [
    "ArrayData",
    "Augment",
    "Batch",
    "Data",
    "DataFacts",
    "DataSet",
    "ImageData",
    "Indexed",
    "IterableData",
    "Normalise",
    "TextData",
    "digits",
    "images",
    "load_data",
    "npz",
    "table",
    "text",
]
