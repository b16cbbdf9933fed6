"""`handheld verify`: every op of a step against PyTorch, on a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from handheld.cli import output
from handheld.cli.options import AcceptFrozen, Data, Json, On, Precision, Seed, Size, Spec
from handheld.cli.prepare import capture_example
from handheld.errors import HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph
from handheld.resolve import ModelSpec, open_model
from handheld.run.batch import batch_sizes
from handheld.run.verify import TOLERANCE, Row, Verification, verify_plan
from handheld.step import Step

SHOWN = 10  # ops that differ, unless all are asked for


def verify(
    what: Spec,
    size: Size = None,
    on: On = "opencl",
    precision: Precision = "float32",
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, metavar="N", help=("Batch size; a small one if not given."))
    ] = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="NAME", help=("Only this graph: train, evaluate, predict."))
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, metavar="ERROR", help=("Largest relative error that passes."))
    ] = TOLERANCE,
    data: Data = None,
    everything: Annotated[bool, typer.Option("--all", help="List every op.")] = False,
    seed: Seed = 0,
    accept_frozen: AcceptFrozen = False,
    json: Json = False,
) -> None:
    """Compare every op with PyTorch and name the first that differs.

    PyTorch computes in float64, and both sides get the same inputs for each op: an error is
    charged to the op that makes it. What is stored in halves may differ by 2^-11. Needs PyTorch.

    A step cannot repeat what Python code decides from values (if x.sum() > 0): it is frozen as it
    was in the example batch. Such lines are named, and run again on other batches to see whether
    they decide otherwise.

    The exit code is 1 if an op differs, or if something is frozen and that is not accepted.

    \b
    Examples:
    handheld verify lenet5
    handheld verify mine.py:make --on opencl:0 --all
    """
    import torch  # noqa: F401  the reference: say early that it is missing

    spec = open_model(what, size)
    batch_size = batch or min(spec.default_batch, 4)
    step, batches = capture_example(spec, [batch_size], seed, data)
    if not batches and (example := spec.example(batch_size)) is not None:
        batches = [example]
    results = []
    for name in _chosen(step, graph, batch):
        inputs = _inputs(batches, step.graphs[name], seed)
        plan = step.plan(on, graphs=[name], isolate=True, precision=precision)
        results.append(verify_plan(plan, inputs, name, tolerance))
    frozen = _frozen(step, spec, batches, seed, [result.graph for result in results])
    if json:
        output.print_json([_as_json(r, frozen, accept_frozen) for r in results])
    else:
        for result in results:
            present(result, everything, _doubtful(result, frozen, accept_frozen))
        _present_frozen(frozen, accept_frozen)
    if not all(r.passed and not _doubtful(r, frozen, accept_frozen) for r in results):
        raise typer.Exit(1)


def _chosen(step: Step, graph: str | None, batch: int | None) -> list[str]:
    sizes = batch_sizes(step.graphs, "train")
    names = list(step.graphs)
    if sizes:
        batch_size = batch or min(sizes)
        if batch_size not in sizes:
            raise HandheldError(f"batch {batch_size} is not packaged; there are {', '.join(map(str, sizes))}")
        names = [n for n in names if n.partition("@")[2].partition(".")[0] == str(batch_size)]
    if graph is not None:
        names = [n for n in names if graph in (n, n.partition("@")[0])]
        if not names:
            raise HandheldError(f"there is no graph {graph!r}; there are {', '.join(step.graphs)}")
    return names


def _inputs(batches: list[Any], graph: Graph, seed: int) -> tuple[Any, ...]:
    """The example where there is one and it fits the graph, else random values of its shapes."""
    wanted = [graph.tensors[given.tensor].shape for given in graph.inputs]
    example = batches[0] if batches else None
    if isinstance(example, Mapping):
        return (example,)
    if isinstance(example, Sequence):
        for given in (tuple(example), tuple(example[: len(wanted)]), tuple(example[-len(wanted) :])):
            if [tuple(np.shape(value)) for value in given] == wanted:
                return given
    random = np.random.default_rng(seed)
    return tuple(_random(random, graph, given.tensor) for given in graph.inputs)


def _random(random: np.random.Generator, graph: Graph, tensor: int) -> np.ndarray:
    made = graph.tensors[tensor]
    if DTYPES[made.dtype].is_float:
        return random.standard_normal(made.shape).astype(np.float32)
    # a label or token of 0 or 1 exists in any model
    drawn = random.integers(0, 2, made.shape)
    return drawn.astype(DTYPES[made.dtype].numpy)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A value that Python code read once. `changed`: what it is in another batch; `tried`: how many
    others there were, none for a step file."""

    what: str
    graphs: tuple[str, ...]
    changed: str
    tried: int


def _frozen(step: Step, spec: ModelSpec, batches: list[Any], seed: int, graphs: list[str]) -> list[Frozen]:
    found = {what: names for what, names in step.frozen().items() if set(names) & set(graphs)}
    tried = {d.text: d for d in spec.decisions(batches, seed)} if found and batches else {}
    return [
        Frozen(
            what, tuple(names), tried[what].changed if what in tried else "", tried[what].tried if what in tried else 0
        )
        for what, names in found.items()
    ]


def _doubtful(result: Verification, frozen: list[Frozen], accepted: bool) -> bool:
    return not accepted and any(result.graph in one.graphs for one in frozen)


def _present_frozen(frozen: list[Frozen], accepted: bool) -> None:
    if not frozen:
        return
    lines = "1 line of Python code" if len(frozen) == 1 else f"{len(frozen)} lines of Python code"
    output.out.print(f"\n{lines} read values while the step was captured:")
    for one in frozen:
        output.out.print(Text(f"  {one.what} ({', '.join(one.graphs)})"))
        if one.changed:
            output.out.print(Text(f"    decides otherwise: {one.changed}", style="red"))
        else:
            output.out.print(
                f"    the same in {output.count(one.tried, 'other batch')}"
                if one.tried
                else "    not tried on other batches: there is no code to run"
            )
    output.out.print(
        "  Every step goes the way it went then. Try: torch.where in the place of if"
        + ("" if accepted else ", or --accept-frozen")
    )


def _as_json(result: Verification, frozen: list[Frozen], accepted: bool) -> dict[str, Any]:
    first = result.first
    return {
        "device": result.device,
        "graph": result.graph,
        "tolerance": result.tolerance,
        "passed": result.passed and not _doubtful(result, frozen, accepted),
        "first": None if first is None else first.index,
        "frozen": [dataclasses.asdict(f) for f in frozen if result.graph in f.graphs],
        "ops": [_row_as_json(row) for row in result.rows],
    }


def _row_as_json(row: Row) -> dict[str, Any]:
    fields = dataclasses.asdict(row)
    fields["source"] = fields.pop("torch_op")  # the key that readers of this document know
    return fields


def present(result: Verification, everything: bool, frozen: bool = False) -> None:
    """A verdict, and the ops that differ (or all of them)."""
    rows = [row for row in result.rows if everything or not row.passed]
    verdict = "[bold red]FAIL[/]" if not result.passed else "[bold red]FROZEN[/]" if frozen else "[bold green]PASS[/]"
    output.out.print(f"{verdict}  {result}")
    if not rows:
        return
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name, justify in (
        ("op", "right"),
        ("kind", "left"),
        ("phase", "left"),
        ("where", "left"),
        ("error", "right"),
        ("PyTorch's", "right"),
    ):
        table.add_column(name, justify=justify, overflow="ellipsis", no_wrap=True)  # type: ignore[arg-type]
    for row in rows if everything else rows[:SHOWN]:
        table.add_row(*_cells(row), style="" if row.passed else "red")
    output.out.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    own = "" if row.float32_error is None else f"{row.float32_error:.1e}"
    return (str(row.index), row.op, row.phase, row.path, f"{row.error:.1e}", own)
