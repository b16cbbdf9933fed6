"""`handheld export`: writes a run file, or the state of a trained model, in another format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from handheld import container, package
from handheld import export as exporters
from handheld.adapters import MERGED, taken
from handheld.analyse.run import open_run
from handheld.cli import output
from handheld.cli.options import Json, Last
from handheld.cli.prepare import check_writable
from handheld.errors import HandheldError, StepFileError
from handheld.export import tensorboard
from handheld.export.state import State, state_of
from handheld.packing import from_meta, unpacked_state
from handheld.run.checkpoint import read_history, read_result
from handheld.step import names_in

_SUFFIXES = {
    ".pt": "pt",
    ".pth": "pt",
    ".bin": "pt",
    ".safetensors": "safetensors",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".json": "chrome",
}
Lora = Annotated[
    str,
    typer.Option(
        "--lora",
        metavar="WHAT",
        help="Of a model with LoRA: merged (into the weights, under the model's own names), adapter or all.",
    ),
]
_ALL = ", ".join((*exporters.FORMATS, *exporters.STATE_FORMATS))


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A run file, a step file or a checkpoint.")],
    format_name: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help=f"One of: {_ALL}. Default: by --out, else csv or pt."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PATH", help="File or folder to write. Default: next to the file.")
    ] = None,
    last: Last = False,
    lora: Lora = MERGED,
    json: Json = False,
) -> None:
    """Write a run file or a trained model in another format.

    perfetto and chrome make one trace file with steps, ops, memory and all sensors over time, for
    https://ui.perfetto.dev. csv and parquet make a folder with one file per table of a run: ops,
    steps, commands, memory, samples, energy and more. tensorboard makes a folder with the losses,
    rates and metrics of a training, from its run file or checkpoint. perfetto, parquet and
    tensorboard need the packages perfetto, pyarrow and tensorboardX. pt and safetensors hold the
    parameters and buffers of a step file or checkpoint under PyTorch's names:
    model.load_state_dict(torch.load("model.pt", weights_only=True)). Optimizer state is not in them.
    From a checkpoint of train --keep-best, the best epoch is taken.

    \b
    Examples:
    handheld export lenet5-1.run
    handheld export lenet5-1.run --format perfetto
    handheld export lenet5-1.run --format parquet --out tables
    handheld export lenet5-train-1.run --format tensorboard --out events
    handheld export model.step --out model.pt
    handheld export run.checkpoint --out model.safetensors
    handheld export tuned.step --lora adapter --out adapter.safetensors
    """
    if format_name == "tensorboard" and _kind(file) == "checkpoint":
        _print_files(_export_history(file, out or exporters.place(file, format_name)), json)
        return
    state = _state(file, last)
    if lora != MERGED and state is None:
        raise HandheldError(f"--lora is for trained models, and {file} is none. Try: a step file or a checkpoint")
    if last and (state is None or not state.words):
        raise HandheldError(f"--last chooses a state of a checkpoint, and {file} is none. Try: without --last")
    if state is not None:
        arrays = taken(state.arrays, lora)
        tied = {name: first for name, first in state.shared.items() if name in arrays}
        _export_state(file, replace(state, arrays=arrays, shared=tied), format_name, out, json)
        return
    chosen = format_name or _SUFFIXES.get(out.suffix if out else "", "csv")
    if chosen in exporters.STATE_FORMATS:
        raise HandheldError(f"{chosen} is a format for step files and checkpoints. Try: --format csv for {file}")
    target = out or exporters.place(file, chosen)
    _check_target(target, chosen)
    with open_run(file) as run:
        written = exporters.export(run, chosen, target)
    _print_files(written, json)


def _check_target(path: Path, format_name: str) -> None:
    """A file is only replaced if its name says that it has this format, and files of a folder only if they are an
    earlier export, so that a wrong --out costs nothing."""
    if path.is_dir() and any(path.glob(f"*.{format_name}")) and not (path / f"meta.{format_name}").exists():
        raise HandheldError(f"{path} holds other {format_name} files. Try: --out with another folder")
    if path.is_file() and _SUFFIXES.get(path.suffix) != format_name:
        raise HandheldError(
            f"{path} exists, and its name is not that of a {format_name} file. Try: --out with another name"
        )


def _print_files(written: list[Path], json: bool) -> None:
    if json:
        output.print_json({"files": [str(path) for path in written]})
    else:
        output.out.print(output.grid([("wrote" if i == 0 else "", output.path(p)) for i, p in enumerate(written)]))


def _kind(file: Path) -> object:
    """What a file of Handheld holds; None if it is no such file, or a run file."""
    try:
        return container.read(file, lambda metadata: metadata.get("handheld"))[1]
    except StepFileError:
        return None


def _export_history(file: Path, out: Path) -> list[Path]:
    """The scalars of the epochs in a checkpoint. It does not say when they ended, so their times are counted back from
    when the file was written."""
    epochs = read_history(file).epochs
    wall = file.stat().st_mtime - sum(e.seconds for e in epochs)
    scalars: list[tensorboard.Scalar] = []
    for epoch in epochs:
        wall += epoch.seconds
        scalars.append(tensorboard.Scalar("train/rate", epoch.number, epoch.rate, wall))
        scalars += tensorboard.epoch_scalars(epoch.number, epoch.loss, epoch.samples, epoch.seconds, epoch.test, wall)
    if not scalars:
        raise HandheldError(f"{file} has no whole epoch. Try: --resume the training")
    return tensorboard.write_scalars(scalars, out)


def _state(file: Path, last: bool) -> State | None:
    """The state in a step file or a checkpoint; None if the file is neither."""
    try:
        _, kind = container.read(file, lambda metadata: metadata.get("handheld"))
    except StepFileError:
        if file.suffix in (".step", ".checkpoint"):
            raise
        return None
    if kind == "step":
        return state_of(package.load(file))
    if kind != "checkpoint":
        return None
    result = read_result(file, last)
    names, values = result.origin.get("model"), unpacked_state(result.state, from_meta(result.origin))
    if not isinstance(names, tuple) or not all(name in values for name in names):
        raise HandheldError(
            f"{file} does not say which of its values belong to the model: an older Handheld wrote it. "
            "Try: --resume the training once, or --export a step file and export that"
        )
    return State({name: values[name] for name in names}, {}, names_in(dict(result.origin), "absent"), result.words)


def _export_state(file: Path, state: State, format_name: str | None, out: Path | None, json: bool) -> None:
    chosen = format_name or _SUFFIXES.get(out.suffix if out else "", "pt")
    if chosen not in exporters.STATE_FORMATS:
        known = "is a format for run files" if chosen in exporters.FORMATS else "is no format"
        raise HandheldError(f"{chosen} {known}. Try one of: {', '.join(exporters.STATE_FORMATS)}")
    path = out or file.with_suffix(f".{chosen}")
    if path == file:
        raise HandheldError(f"--out {path} would replace the file itself. Try: another name")
    check_writable(path)
    _check_target(path, chosen)
    exporters.STATE_FORMATS[chosen](state, path)
    values = sum(array.size for array in state.arrays.values())
    if state.absent:
        output.warn(f"not in the file, but in the model's state dict: {', '.join(state.absent)}. Try: strict=False")
    if json:
        which = {"state": state.words} if state.words else {}
        output.print_json({"files": [str(path)], **which, "tensors": len(state.arrays), "values": values})
        return
    load = "torch.load(path, weights_only=True)" if chosen == "pt" else "safetensors.torch.load_file(path)"
    rows = [
        ("wrote", output.path(path)),
        *([("state", state.words)] if state.words else []),
        ("holds", f"{output.count(len(state.arrays), 'tensor')}, {output.count(values, 'value')}; no optimizer state"),
        ("load it", f"model.load_state_dict({load})"),
    ]
    output.out.print(output.grid(rows))
