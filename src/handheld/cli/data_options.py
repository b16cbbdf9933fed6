"""The options of commands that read data, and the loading of data in the form that a model takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from handheld.cli.options import with_options
from handheld.data import ArrayData, DataSet, ImageData, load_data
from handheld.data.augment import Augment, Normalise, Normalising
from handheld.data.dataset import DataFacts
from handheld.errors import DataError
from handheld.resolve import ModelSpec, StepFile

#: Replaces the word DATA_FORMATS in the help of a command.
FORMATS = """\b
Data (one row per sample; shuffled by the seed; a fifth is held out to test):
file.npz   arrays x and y; or x_train, y_train, x_test, y_test; or all of
           its arrays in order, labels last; or input_ids, labels and so on
           for a model that takes a dictionary. Floats become float32,
           integers int64; image bytes are scaled to [0, 1]
folder/    class/picture.png, or train/class/… and test/class/…; resized
           to what the model takes, or to --image-size
file.csv   a header row; the last column or --label holds the labels. Text:
           classes. Numbers: a regression if the example batch or step file
           has float labels, classes if it has integers; without either,
           up to 100 different whole numbers are classes
file.txt   bytes are the tokens; the last fifth of the text is the test set.
           The model gets windows [n, 64] (--length) and, as labels, the
           tokens that follow [n, 64]. Accuracy is per token"""

ImageSize = Annotated[
    str | None,
    typer.Option(
        "--image-size", metavar="N", help="Resize images to N×N or HxW pixels. Default: the model's size, or 32."
    ),
]
Gray = Annotated[
    bool, typer.Option("--gray", help="Read images as one gray channel. Default: as the model takes them.")
]
Augmenting = Annotated[
    str,
    typer.Option(
        "--augment",
        metavar="NAMES",
        show_default=False,
        help="Change training images at random: flip, crop (pad by an eighth, then cut), crop=4, or flip,crop.",
    ),
]
Normal = Annotated[
    bool,
    typer.Option(
        "--normalise",
        "--normalize",
        help="Subtract the mean of the training set and divide by its standard deviation, per channel or column.",
    ),
]
Mean = Annotated[
    str | None, typer.Option("--mean", metavar="X,X,...", help="Normalise with this mean instead, and with --std.")
]
Std = Annotated[str | None, typer.Option("--std", metavar="X,X,...", help="The standard deviation for --mean.")]
Label = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="The label column of a .csv file. Default: the last.")
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Leave a column of a .csv file out. Repeatable.")
]
OneHot = Annotated[
    list[str] | None,
    typer.Option("--one-hot", metavar="COLUMN", help="Make one 0/1 input per value of a .csv column. Repeatable."),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length", min=1, metavar="N", help="Tokens per window of a text. Default: as the model's example, or 64."
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read. Every image is read once first.")
]


@dataclass(frozen=True)
class DataOptions:
    """How to read the data, as far as the user said so."""

    image_size: tuple[int, int] | None = None
    gray: bool = False
    augment: str = ""
    normalise: Normalising = False
    label: str | None = None
    drop: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    skip_bad: bool = False
    length: int | None = None

    @staticmethod
    def read(
        image_size: ImageSize = None,
        gray: Gray = False,
        augment: Augmenting = "",
        normalise: Normal = False,
        mean: Mean = None,
        std: Std = None,
        label: Label = None,
        drop: Drop = None,
        one_hot: OneHot = None,
        skip_bad: SkipBad = False,
        length: Length = None,
    ) -> DataOptions:
        """The options from what was typed. Raises DataError for what cannot be read."""
        if (mean is None) != (std is None):
            raise DataError(
                f"{'--std' if mean is None else '--mean'} needs {'--mean' if mean is None else '--std'} too"
            )
        chosen: Normalising = normalise
        if mean is not None and std is not None:
            chosen = Normalise(_floats("--mean", mean), _floats("--std", std))
        return DataOptions(
            None if image_size is None else _pixels(image_size),
            gray,
            str(Augment.parse(augment)),
            chosen,
            label,
            tuple(drop or ()),
            tuple(one_hot or ()),
            skip_bad,
            length,
        )


def with_data_options(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """Give a command the options of `DataOptions.read`. It gets them as its argument `given`."""
    run = with_options(DataOptions.read, "given", without)(command)
    run.__doc__ = inspect.cleandoc(command.__doc__ or "").replace("DATA_FORMATS", FORMATS)
    return run


def with_example_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that only takes example batches from data the options that change their shapes."""
    return with_data_options(command, without=("augment", "normalise", "mean", "std"))


#: No option was given.
PLAIN = DataOptions()


def _pixels(text: str) -> tuple[int, int]:
    numbers = (
        [int(n) for n in re.split("[x×]", text.lower())] if re.fullmatch(r"\d{1,5}([x×]\d{1,5})?", text.lower()) else []
    )
    if not numbers or min(numbers) < 1:
        raise DataError(f"--image-size {text} is not a size in pixels. Try: --image-size 48, or 48x64 (height x width)")
    return numbers[0], numbers[-1]


def _floats(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise DataError(f"{option} {text} is not a list of numbers. Try: {option} 0.5,0.5,0.5") from None


def load(data: str, batch: int, seed: int, spec: ModelSpec, given: DataOptions = PLAIN) -> DataSet:
    """Load the data in the shape that the model takes."""
    shape = spec.shape()
    like = DataFacts.of(spec.loaded.meta) if isinstance(spec, StepFile) else None
    options: dict[str, Any] = {"like": like, "gray": given.gray}
    if len(shape) == 4:
        options |= {"size": shape[2:], "gray": given.gray or shape[1] == 1}
    elif len(shape) == 2:
        options |= {"length": shape[1]}
    if given.length is not None:
        options |= {"length": _checked_length(given.length, spec, shape)}
    if given.image_size is not None:
        options |= {"size": _checked_size(given.image_size, spec, shape)}
    wanted = spec.label()
    dataset = load_data(
        data,
        batch,
        seed=seed,
        augment=given.augment,
        normalise=given.normalise,
        label=given.label,
        drop=given.drop,
        one_hot=given.one_hot,
        skip_bad=given.skip_bad,
        names=_input_names(spec),
        regression=None if wanted is None else wanted[1].startswith("float"),
        **options,
    )
    if given.length is not None and dataset.facts.kind != "text":
        raise DataError(f"{data} is no text, so --length does not apply. Try: without it")
    if isinstance(dataset.train, ImageData):
        return _checked_images(dataset, spec, shape, given)
    if given.image_size is not None or given.gray or given.skip_bad:
        raise DataError(
            f"{data} is no folder of images, so --image-size, --gray and --skip-bad do not apply. Try: without them"
        )
    return flat_labels(dataset) if wanted is not None and wanted[0] == 1 and label_dims(dataset) == 2 else dataset


def _input_names(spec: ModelSpec) -> tuple[str, ...] | None:
    """The names of the inputs of a model that takes a dictionary; empty if it takes tensors in order, None if nothing
    is known."""
    if isinstance(spec, StepFile):
        graph = spec.loaded.graphs.get(next(iter(spec.sizes.values()), "train"))
        names = tuple(given.name for given in graph.inputs) if graph is not None else ()
        return () if all(name.isdigit() or name == "batch" for name in names) else names
    example = spec.example(1)
    return None if example is None else tuple(example) if isinstance(example, Mapping) else ()


def _checked_size(size: tuple[int, int], spec: ModelSpec, shape: tuple[int, ...]) -> tuple[int, int]:
    """Raise DataError if a step file was captured for images of another size."""
    if isinstance(spec, StepFile) and len(shape) == 4 and shape[2:] != size:
        raise DataError(
            f"{spec.name} takes images of {shape[2]}x{shape[3]}, not {size[0]}x{size[1]}. Try: without --image-size, "
            "or package the model again from its code"
        )
    return size


def _checked_length(length: int, spec: ModelSpec, shape: tuple[int, ...]) -> int:
    """Raise DataError if a step file was captured for windows of another length."""
    if isinstance(spec, StepFile) and len(shape) == 2 and shape[1] != length:
        raise DataError(
            f"{spec.name} takes windows of {shape[1]} tokens, not {length}. Try: without --length, or package the "
            "model again from its code"
        )
    return length


def _checked_images(dataset: DataSet, spec: ModelSpec, shape: tuple[int, ...], given: DataOptions) -> DataSet:
    if len(shape) == 4 and shape[1] not in (1, 3):
        raise DataError(f"{spec.name} takes {shape[1]} channels; images have 1 (gray) or 3 (RGB). Try: a .npz file")
    if isinstance(spec, StepFile) and len(shape) == 4 and given.gray and shape[1] == 3:
        raise DataError(f"{spec.name} takes images in colour. Try: without --gray")
    if not shape and given.image_size is None:
        note = f"{spec.name} has no example batch, so nothing says which size of images it takes: 32×32 is used. "
        return DataSet(
            dataset.name, dataset.train, dataset.test, dataset.facts, (f"{note}--image-size changes it", *dataset.notes)
        )
    return dataset


def own_size(spec: ModelSpec, given: DataOptions) -> str:
    """A sentence about the size of the model's own example, if --image-size asked for another one; else ""."""
    shape = spec.shape()
    if given.image_size is None or len(shape) != 4 or shape[2:] == given.image_size:
        return ""
    own = f"{shape[2]}x{shape[3]}"
    return f". Its own example batch has images of {own}. Try: --image-size {own}"


def label_dims(dataset: DataSet) -> int:
    """The number of dimensions of a table's float labels; 0 for other data."""
    data = dataset.train
    table = dataset.facts.kind == "table" and isinstance(data, ArrayData) and data.arrays[-1].dtype.kind == "f"
    return data.arrays[-1].ndim if table and isinstance(data, ArrayData) else 0


def flat_labels(dataset: DataSet) -> DataSet:
    """The data with the labels of its table as [n] instead of [n, 1], as the model's output is, and a note."""
    for data in (dataset.train, dataset.test):
        if isinstance(data, ArrayData):
            data.arrays = (*data.arrays[:-1], data.arrays[-1].reshape(-1))
    note = f"{dataset.name}: the labels have the shape [n] instead of [n, 1], because the outputs of the model do"
    return replace(dataset, notes=(*dataset.notes, note))
