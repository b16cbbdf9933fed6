"""Finds the model that a command works on: a workload of the suite, `file.py:factory`, or a step file."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from handheld import container, package, suite
from handheld.callers import standing_at
from handheld.data.load import DATA_SUFFIXES
from handheld.errors import BatchError, CaptureError, HandheldError, StepFileError
from handheld.names import suggestion
from handheld.partial.options import WHOLE, PartialOptions
from handheld.run.batch import batch_sizes, own_size
from handheld.step import Step
from handheld.updates import UpdateOptions
from handheld.user_errors import check_no_arguments, in_factory, in_model

if TYPE_CHECKING:
    from handheld.frontend.trial import Decision
    from handheld.suite.synthetic import Parts


class ModelSpec(ABC):
    """A model that can become a Step."""

    name: str
    default_batch: int
    folder: Path | None = None  # the folder of the user's code
    update = UpdateOptions()
    partial = WHOLE  # what of the model trains
    takes_data = True  # whether the command has --data, which messages may then advise

    @abstractmethod
    def example(self, size: int) -> Any:
        """An example batch of this size, or None if only the data can provide one."""

    @abstractmethod
    def step(self, sizes: Sequence[int], seed: int, batch: Any = None, classes: int | None = None) -> Step:
        """The step for these batch sizes. `batch` and `classes` are a batch and the number of classes of the data."""

    def decisions(self, batches: Sequence[Any], seed: int) -> list[Decision]:
        """The decisions of Python code on the first batch, and whether they differ on the other batches and on those of
        frontend/trial.py. Empty if there is no code that can be run again."""
        return []

    def runs(self, example: Any) -> list[tuple[str, Any]]:
        """The graphs that one training step runs in turn, each with its part of an example. Empty if the graphs alone
        determine this."""
        return []

    def shape(self) -> tuple[int, ...]:
        """The shape of the first input at batch size 1, or empty if it is not known."""
        example = self.example(1)
        if isinstance(example, Mapping):
            example = list(example.values())
        return tuple(example[0].shape) if example else ()

    def label(self) -> tuple[int, str] | None:
        """The number of dimensions and the type of the last input, which holds the labels; None if it is not known."""
        example = self.example(1)
        if not isinstance(example, (tuple, list)) or len(example) < 2 or not hasattr(example[-1], "dtype"):
            return None
        return int(example[-1].ndim), str(example[-1].dtype).removeprefix("torch.")


def open_model(what: str, size: str | None = None, partial: PartialOptions = WHOLE) -> ModelSpec:
    """The model for a text that the user typed. Only a workload has sizes. `partial` says what of it trains."""
    spec = _open_model(what, size)
    spec.partial = partial
    return spec


def _open_model(what: str, size: str | None) -> ModelSpec:
    path, _, factory = what.rpartition(":")
    if size is not None and (what.endswith((".step", ".py")) or path.endswith(".py")):
        raise HandheldError(
            f"--size {size} applies only to workloads of the suite. {what} is your own model: "
            "its code or its data determine its size"
        )
    if what.endswith(".step"):
        return StepFile(Path(what))
    if path.endswith(".py") and factory:
        return Factory(Path(path), factory)
    if what.endswith(".py"):
        raise HandheldError(f"the function of {what} that makes the model is missing. Try: {what}:make")
    if factory and (Path(path).suffix or Path(f"{path}.py").exists()) and not Path(what).exists():
        raise HandheldError(_no_factory(Path(path), factory))
    if what in suite.WORKLOADS or not (Path(what).suffix or Path(what).exists()):
        return Suite(what, size)
    raise HandheldError(f"{_no_model(Path(what))}. A model is a workload (lenet5), file.py:factory or a step file")


def check_model(what: str, size: str) -> int | None:
    """Raise an error if there is no such model. Returns its default batch size if this is known without running code of
    the user."""
    if not what.endswith(".step"):
        spec = open_model(what, size if what in suite.WORKLOADS else None)
        return spec.default_batch if isinstance(spec, Suite) else None
    if not Path(what).is_file():
        raise HandheldError(f"there is no file {what}")
    return None


def _no_factory(path: Path, function: str) -> str:
    """Why `path:function` is not a factory."""
    why = f"{path} is not a Python file" if path.exists() else f"there is no file {path}"
    beside = [f"{path.with_name(each.name)}:{function}" for each in path.parent.glob("*.py")]
    return f"{why}. {suggestion(f'{path}:{function}', beside, f'file.py:{function}')}"


def _no_model(path: Path) -> str:
    """Why a path is not a model, and what to do."""
    if not path.exists():
        return f"there is no file {path}"
    if path.is_dir() or path.suffix in DATA_SUFFIXES:
        return f"{path} is data, not a model. Try: handheld train MODEL --data {path}"
    try:
        _, kind = container.read(path, lambda metadata: metadata.get("handheld"))
    except StepFileError:
        kind = None
    if kind == "checkpoint":
        return (
            f"{path} is a checkpoint, which holds values but no model. "
            f"Try: handheld train MODEL --data DATA --checkpoint {path} --resume"
        )
    if kind == "step":
        return f"{path} is a step file, but its name does not end in .step. Try: rename it to {path.name}.step"
    return f"{path} is {'a plan file for a runner' if path.suffix == '.plan' else 'not a model that Handheld knows'}"


class Suite(ModelSpec):
    """A workload that comes with Handheld."""

    def __init__(self, name: str, size: str | None = None) -> None:
        self.workload = suite.get(name, size)
        self.name = name if size is None else f"{name}_{size}"
        self.default_batch = self.workload.default_batch

    def example(self, size: int) -> Any:
        return self.workload.batch(size)

    def runs(self, example: Any) -> list[tuple[str, Any]]:
        return list(self.workload.runs(example))

    def step(self, sizes: Sequence[int], seed: int, batch: Any = None, classes: int | None = None) -> Step:
        workload = self.workload
        if classes:
            for option in ("classes", "vocabulary"):
                with contextlib.suppress(HandheldError):  # Not every family has the option.
                    workload = workload.with_options(**{option: classes})
        if not workload.single:
            for options in (self.update, self.partial):
                options.refuse(f"{self.name} has several updates per step, which its own code captures")
            return workload.step(sizes[0], seed)  # The family itself captures a step with several updates.
        examples = {n: resized(batch, n) if batch is not None else workload.batch(n, seed) for n in sizes}
        return capture_sizes(workload.make(seed), examples, seed, self.name, self.update, partial=self.partial)


class Factory(ModelSpec):
    """A user's function that returns (model, loss, optimizer) or (model, loss, optimizer, batch). The batch is an
    example, or a function that takes the batch size and returns an example."""

    def __init__(self, path: Path, function: str) -> None:
        self.name, self.path, self.function = f"{path.stem}_{function}", path, function
        self.folder = path.absolute().parent
        self._made: tuple[Parts, Any] | None = None
        if not path.is_file():
            raise HandheldError(_no_factory(path, function))

    @property
    def default_batch(self) -> int:  # type: ignore[override]
        batch = self._parts()[1]
        return (own_size(batch) or 32) if batch is None or callable(batch) else _rows(batch)

    def example(self, size: int) -> Any:
        batch = self._parts()[1]
        if not callable(batch):
            return None if batch is None else resized(batch, size)
        try:
            return batch(size)
        except Exception as error:  # The user's function may raise anything.
            where = f"the batch function of {self.path}:{self.function}, called with {size},"
            raise in_factory(error, where, self.path.resolve().parent) from error

    def step(self, sizes: Sequence[int], seed: int, batch: Any = None, classes: int | None = None) -> Step:
        parts = self.parts(seed)
        examples = {n: resized(batch, n) if batch is not None else self.need_example(n) for n in sizes}
        with standing_at(*self._place()):
            return capture_sizes(parts, examples, seed, self.name, self.update, self.folder, self.partial)

    def _place(self) -> tuple[str, int]:
        """The file and line of the function, for warnings about code that only Handheld calls, such as F.mse_loss."""
        function = getattr(sys.modules[_module_name(self.path)], self.function)
        code = getattr(inspect.unwrap(function), "__code__", None)
        return str(self.path.resolve()), code.co_firstlineno if code else 1

    def parts(self, seed: int) -> Parts:
        """A new model at each call; equal for equal seeds."""
        import torch

        torch.manual_seed(seed)
        return self._call()[0]

    def need_example(self, size: int) -> Any:
        example = self.example(size)
        if example is None:
            raise CaptureError(
                f"{self.path}:{self.function} returns no example batch. "
                f"Try: {'--data DATA, or ' if self.takes_data else ''}let it return (model, loss, optimizer, batch)"
            )
        return example

    def decisions(self, batches: Sequence[Any], seed: int) -> list[Decision]:
        import torch

        from handheld.frontend.closures import closure
        from handheld.frontend.trial import other_batches, try_batches

        torch.manual_seed(seed)
        (model, loss, _), own = self._call()
        first, *rest = batches
        others = [(f"batch {n + 2} of the data", batch) for n, batch in enumerate(rest)]
        if callable(own):
            others.append(("another batch of the factory", own(_rows(first))))
        return list(try_batches(model, closure(model, loss, 1), first, [*others, *other_batches(first)]))

    def _parts(self) -> tuple[Parts, Any]:
        if self._made is None:
            self._made = self._call()
        return self._made

    def _functions(self) -> list[str]:
        """The functions that the user's file itself defines."""
        module = sys.modules[_module_name(self.path)]
        return [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]

    def _call(self) -> tuple[Parts, Any]:
        where = f"{self.path}:{self.function}"
        try:
            function = getattr(_import_file(self.path), self.function, None)
            if callable(function):
                check_no_arguments(function, where)
            made = function() if callable(function) else None
        except Exception as error:
            if isinstance(error, CaptureError) or (
                isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "torch"
            ):
                raise
            raise in_factory(error, where, self.path.resolve().parent) from error
        if not callable(function):
            has = self._functions()
            hint = suggestion(self.function, has, f"{self.path}:{has[0]}" if has else "add a function to it")
            raise CaptureError(f"{self.path} has no function {self.function!r}. {hint}")
        if not isinstance(made, tuple) or len(made) not in (3, 4):
            raise CaptureError(
                f"{where} returned {_describe(made)}. It should return "
                "(model, loss, optimizer) or (model, loss, optimizer, batch)"
            )
        batch = made[3] if len(made) > 3 else None
        return made[:3], dict(batch) if isinstance(batch, Mapping) else batch


class StepFile(ModelSpec):
    """A captured step. Needs no PyTorch."""

    def __init__(self, path: Path) -> None:
        self.loaded = package.load(path)
        self.name = str(self.loaded.meta.get("name") or path.stem)
        self.sizes = batch_sizes(self.loaded.graphs, "train")
        shape = self.shape()
        self.default_batch = max(self.sizes, default=shape[0] if shape else 1)

    def example(self, size: int) -> Any:
        return None

    def shape(self) -> tuple[int, ...]:
        name = next(iter(self.sizes.values()), "train")
        graph = self.loaded.graphs.get(name)
        return graph.tensors[graph.inputs[0].tensor].shape if graph and graph.inputs else ()

    def label(self) -> tuple[int, str] | None:
        graph = self.loaded.graphs.get(next(iter(self.sizes.values()), "train"))
        if graph is None or len(graph.inputs) < 2:
            return None
        last = graph.inputs[-1]
        return len(graph.tensors[last.tensor].shape), last.torch_dtype

    def step(self, sizes: Sequence[int], seed: int, batch: Any = None, classes: int | None = None) -> Step:
        for size in sizes:
            self._check_size(size)
        for refuse in (self.update.refuse, functools.partial(self.partial.refuse, but_bits=True)):
            refuse("a step file holds its updates as they were captured. Try: train the code of the model")
        return self.partial.finish(self.loaded)

    def _check_size(self, size: int) -> None:
        """Raise BatchError if the file was not captured for a batch of this size."""
        shape = self.shape()
        known = list(self.sizes) or [shape[0]] if shape else []
        if known and size not in known:
            batches = ", ".join(map(str, known))
            raise BatchError(
                f"the step file was captured for a batch of {batches}, not {size}. "
                f"Try: --batch {known[0]}, or handheld package --batch {size}"
            )


def capture_sizes(
    parts: Parts,
    examples: Mapping[int, Any],
    seed: int,
    name: str,
    update: UpdateOptions | None = None,
    folder: Path | None = None,
    partial: PartialOptions = WHOLE,
) -> Step:
    """Capture the graphs train, evaluate and predict. For several batch sizes their names are `train@4` and so on."""
    try:
        partial = partial.apply(*parts, [examples[max(examples)]])
        return partial.finish(_capture_sizes(parts, examples, seed, name, asdict(update or UpdateOptions())))
    except (HandheldError, ImportError):
        raise
    except Exception as error:  # The user's forward or loss may raise anything.
        raise in_model(error, name, next(iter(examples.values())), parts[0], folder) from error


def _capture_sizes(parts: Parts, examples: Mapping[int, Any], seed: int, name: str, update: dict[str, Any]) -> Step:
    from handheld.frontend.capture import Capture
    from handheld.frontend.closures import closure
    from handheld.frontend.entry import capture
    from handheld.frontend.predict import record_prediction

    model, loss, optimizer = parts
    if len(examples) == 1:
        return capture(
            model, loss, optimizer, next(iter(examples.values())), seed=seed, name=name, frozen="accept", **update
        )  # Each command reports frozen values itself.
    builder, fn = Capture(model, seed), closure(model, loss, 1)
    for size, batch in examples.items():
        builder.train(fn, optimizer, batch, f"train@{size}", **update)
        builder.evaluate(fn, batch, f"evaluate@{size}")
        record_prediction(builder, model, batch, loss is not None, 1, f"predict@{size}")
    return builder.step(name=name, frozen="accept")


def resized(batch: Any, size: int) -> Any:
    """The example with its samples repeated or cut to a batch of `size`."""
    if isinstance(batch, Mapping):
        return {key: resized(value, size) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(resized(value, size) for value in batch)
    if not getattr(batch, "ndim", 0) or not batch.shape[0]:
        return batch
    return batch[np.arange(size) % batch.shape[0]]


def _rows(batch: Any) -> int:
    values = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    return next((int(v.shape[0]) for v in values if getattr(v, "ndim", 0)), 1)


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _module_name(path: Path) -> str:
    return f"handheld_user_{path.stem}"


def _import_file(path: Path) -> ModuleType:
    """Import the user's file as a module. It can import other files of its folder."""
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise HandheldError(f"{path} cannot be imported")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    run: Callable[[ModuleType], None] = spec.loader.exec_module
    run(module)
    return module
