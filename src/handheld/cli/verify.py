"""`handheld verify`: compares every op of a step on a device with PyTorch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.means_options import AS_IS, Means, with_exact_means
from handheld.cli.options import AcceptFrozen, Data, Json, MemoryLimit, OnAuto, Precision, Seed, Size, Spec, nbytes
from handheld.cli.partial_options import with_partial_options
from handheld.cli.placing import AUTO, Wanted, placed
from handheld.cli.prepare import capture_example
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.errors import HandheldError
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph
from handheld.partial.options import WHOLE, PartialOptions
from handheld.plan.plan import Plan
from handheld.resolve import ModelSpec, StepFile, open_model
from handheld.run.batch import batch_sizes
from handheld.run.verify import TOLERANCE, Row, Verification, verify_plan
from handheld.step import Step

SHOWN = 10  # Ops listed without --all.
COLUMNS = (
    Column("op"),
    Column("kind", name_of=True, least=8),
    Column("phase", name_of=True, drop=1, least=8),
    Column("where", name_of=True, least=12),
    Column("error"),
    Column("PyTorch's", drop=2),
)


Batch = Annotated[int | None, typer.Option("--batch", min=1, metavar="N", help=("Batch size. Default: at most 4."))]


@with_partial_options
@with_exact_means
@with_example_options
def verify(
    what: Spec,
    size: Size = None,
    on: OnAuto = "opencl",
    precision: Precision = "float32",
    batch: Batch = None,
    graph: Annotated[
        str | None, typer.Option("--graph", metavar="NAME", help=("Only this graph: train, evaluate, predict."))
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, metavar="ERROR", help=("Largest relative error that passes."))
    ] = TOLERANCE,
    data: Data = None,
    everything: Annotated[bool, typer.Option("--all", help="List every op.")] = False,
    memory_limit: MemoryLimit = None,
    seed: Seed = 0,
    accept_frozen: AcceptFrozen = False,
    json: Json = False,
    given: DataOptions = PLAIN,
    partial: PartialOptions = WHOLE,
    means: Means = AS_IS,
) -> None:
    """Compare every op with PyTorch and name the first that differs.

    PyTorch computes in float64. Both sides get the same inputs for each op, so an error is charged to
    the op that makes it. Values stored in half precision may differ by 2^-11. Needs PyTorch.

    A step cannot repeat what Python code decides from values (if x.sum() > 0): the decision of the example batch is
    frozen. Such lines are listed, and run again on other batches to see whether they decide differently.

    The exit code is 1 if an op differs, or if a decision is frozen and --accept-frozen is not given.

    \b
    Examples:
    handheld verify lenet5
    handheld verify mine.py:make --on opencl:0 --all
    """
    limit = nbytes(memory_limit)
    on = _placed(Wanted(what, size, on, batch, None, precision, data, given, partial, limit, seed), json)
    with stages(json):
        import torch  # noqa: F401  PyTorch is the reference; if it is missing, the command fails early.

        spec = open_model(what, size, partial.at(on))
        batch_size = batch or _own_batch(spec)
        step, batches = capture_example(spec, [batch_size], seed, data, given)
        if not batches and (example := spec.example(batch_size)) is not None:
            batches = [example]
        results = []
        for name in _chosen(step, graph, batch):
            inputs = _inputs(batches, step.graphs[name], seed)
            results.append(verify_plan(_plan(step, on, name, precision, limit, means), inputs, name, tolerance))
        frozen = _frozen(step, spec, batches, seed, [result.graph for result in results])
    if json:
        output.print_json([_as_json(r, frozen, accept_frozen) for r in results])
    else:
        for result in results:
            present(result, everything, _doubtful(result, frozen, accept_frozen))
        _present_frozen(frozen, accept_frozen)
    if not all(r.passed and not _doubtful(r, frozen, accept_frozen) for r in results):
        raise typer.Exit(1)


def _placed(wanted: Wanted, json: bool) -> str:
    """The device of a verification, chosen at its batch."""
    if wanted.on != AUTO:
        return wanted.on
    count = wanted.batch or _own_batch(open_model(wanted.what, wanted.size, wanted.partial))
    return placed(dataclasses.replace(wanted, batch=count), json)[0]


def _own_batch(spec: ModelSpec) -> int:
    return spec.default_batch if isinstance(spec, StepFile) else min(spec.default_batch, 4)


def _plan(step: Step, on: str, name: str, precision: str, limit: int | None, means: Means) -> Plan:
    """A plan in which every tensor has its own memory. With a limit, it has the ops of the plan that meets it."""
    if limit is None and means == AS_IS:
        return step.plan(on, graphs=[name], isolate=True, precision=precision)
    plan = step.plan(
        on, graphs=[name], precision=precision, memory_limit_bytes=limit, micro_batches=1, **means.options()
    )
    return plan.again(isolate=True, memory_limit_bytes=None)


def _chosen(step: Step, graph: str | None, batch: int | None) -> list[str]:
    sizes = batch_sizes(step.graphs, "train")
    names = list(step.graphs)
    if sizes:
        batch_size = batch or min(sizes)
        names = [n for n in names if n.partition("@")[2].partition(".")[0] == str(batch_size)]
    if graph is not None:
        names = [n for n in names if graph in (n, n.partition("@")[0])]
        if not names:
            raise HandheldError(f"there is no graph {graph!r}; the step has {', '.join(step.graphs)}")
    return names


def _inputs(batches: list[Any], graph: Graph, seed: int) -> tuple[Any, ...]:
    """The example if there is one that fits the graph, else random values of the graph's shapes."""
    shapes = [graph.tensors[given.tensor].shape for given in graph.inputs]
    example = batches[0] if batches else None
    if isinstance(example, Mapping):
        return (example,)
    if isinstance(example, Sequence):
        for values in (tuple(example), tuple(example[: len(shapes)]), tuple(example[-len(shapes) :])):
            if [tuple(np.shape(value)) for value in values] == shapes:
                return values
    random = np.random.default_rng(seed)
    return tuple(_random(random, graph, given.tensor) for given in graph.inputs)


def _random(random: np.random.Generator, graph: Graph, tensor: int) -> np.ndarray:
    spec = graph.tensors[tensor]
    if DTYPES[spec.dtype].is_float:
        return random.standard_normal(spec.shape).astype(np.float32)
    # 0 and 1 are valid labels and tokens in every model.
    drawn = random.integers(0, 2, spec.shape)
    return drawn.astype(DTYPES[spec.dtype].numpy)


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A value that Python code read during the capture.

    `changed` describes a different value in another batch. `tried` is the number of other batches that
    were run; it is 0 for a step file, which holds no code.
    """

    what: str
    graphs: tuple[str, ...]
    changed: str
    tried: int


def _frozen(step: Step, spec: ModelSpec, batches: list[Any], seed: int, graphs: list[str]) -> list[Frozen]:
    values = {what: names for what, names in step.frozen().items() if set(names) & set(graphs)}
    tried = {d.text: d for d in spec.decisions(batches, seed)} if values and batches else {}
    return [
        Frozen(
            what, tuple(names), tried[what].changed if what in tried else "", tried[what].tried if what in tried else 0
        )
        for what, names in values.items()
    ]


def _doubtful(result: Verification, frozen: list[Frozen], accepted: bool) -> bool:
    return not accepted and any(result.graph in value.graphs for value in frozen)


def _present_frozen(frozen: list[Frozen], accepted: bool) -> None:
    if not frozen:
        return
    lines = "1 line of Python code" if len(frozen) == 1 else f"{len(frozen)} lines of Python code"
    output.out.print(f"\n{lines} read values while the step was captured:")
    for value in frozen:
        output.out.print(Text(f"  {value.what} ({', '.join(value.graphs)})"))
        if value.changed:
            output.out.print(Text(f"    decides differently: {value.changed}", style="red"))
        else:
            output.out.print(
                f"    decides the same in {output.count(value.tried, 'other batch')}"
                if value.tried
                else "    not tried on other batches: a step file holds no code"
            )
    output.out.print(
        "  Every step repeats that decision. Try: torch.where instead of if"
        + ("" if accepted else ", or --accept-frozen")
    )


def _as_json(result: Verification, frozen: list[Frozen], accepted: bool) -> dict[str, object]:
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


def _row_as_json(row: Row) -> dict[str, object]:
    fields = dataclasses.asdict(row)
    fields["source"] = fields.pop("torch_op")  # The JSON document keeps its old key.
    return fields


def present(result: Verification, everything: bool, frozen: bool = False) -> None:
    """Print the verdict and the ops that differ, or all ops."""
    rows = [row for row in result.rows if everything or not row.passed]
    verdict = "[bold red]FAIL[/]" if not result.passed else "[bold red]FROZEN[/]" if frozen else "[bold green]PASS[/]"
    output.out.print(f"{verdict}  {result}")
    if not rows:
        return
    shown = rows if everything else rows[:SHOWN]
    styles = ["" if row.passed else "red" for row in shown]
    output.out.print(table(COLUMNS, [_cells(row) for row in shown], styles=styles))


def _cells(row: Row) -> tuple[str, ...]:
    own = "" if row.float32_error is None else f"{row.float32_error:.1e}"
    return (str(row.index), row.op, row.phase, row.path, f"{row.error:.1e}", own)
