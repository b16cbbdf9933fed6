"""The answers of a run: what limits the step, the cost of each layer, memory by category, missing tuning."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from handheld.analyse.bound import Bound
from handheld.analyse.run import Run
from handheld.cli import output
from handheld.cli.tables import Column, table
from handheld.cli.time_unit import TimeUnit

LEAST_MS = 0.0005  # A smaller gain per step is shown as none.

LAYERS = (
    Column("layer", name_of=True, least=20),
    Column("mean ms"),
    Column("of step"),
    Column("forward", drop=3),
    Column("backward", drop=3),
    Column("update", drop=4),
    Column("moved", drop=1),
    Column("mJ", drop=2),
)


def answer(run: Run) -> Text:
    """What a training reached, if the run is one, and what limits the step of each graph."""
    bounds = {graph: run.bound(graph) for graph in run.graphs or [run.graph]}
    if not any(bound.limit for bound in bounds.values()):  # The same sentence for all of them.
        bounds = {run.graph: bounds.get(run.graph) or run.bound(run.graph)}
    texts = [_sentence(f"{graph}: " if len(bounds) > 1 else "", bound) for graph, bound in bounds.items()]
    return Text("\n").join([*_training(run), *texts])


def _training(run: Run) -> list[Text]:
    epochs = run.epochs()
    losses = [row.loss for row in epochs if row.loss is not None]
    if not losses:
        return []
    text = f": {output.count(len(epochs), 'epoch')}, {output.count(epochs[-1].step, 'step')}; loss {losses[0]:.4f}"
    if len(losses) > 1:
        text += f" in the first, {losses[-1]:.4f} in the last"
    if epochs[-1].test:
        text += "; at the end, " + ", ".join(f"test {name} {value:.4g}" for name, value in epochs[-1].test.items())
    return [Text.assemble(("Training", "bold"), text + ".")]


def _sentence(name: str, bound: Bound) -> Text:
    first, colon, rest = bound.text.partition(":")
    return Text.assemble(name, (first + colon, "bold"), rest) if bound.limit else Text(name + bound.text)


def layers(run: Run, graph: str, count: int) -> RenderableType:
    """Time and bytes per layer. Where the energy of every op is known, joules too."""
    made = run.layers(graph, count)
    unit = TimeUnit.of(run)
    joules = any(layer.joules is not None for layer in made)
    title = "layer" if len(run.graphs) == 1 else f"layer, {graph}"
    rows = [
        (
            layer.path + (" (the rest of it)" if layer.own else ""),
            unit.number(layer.ms),
            f"{layer.share:.1%}",
            *(unit.number(ms) if ms else "" for ms in (layer.forward_ms, layer.backward_ms, layer.update_ms)),
            output.size(layer.bytes),
            *(("" if layer.joules is None else f"{layer.joules * 1e3:.3f}",) if joules else ()),
        )
        for layer in made[:count]
    ]
    rest = made[count:]
    if rest:
        ms, share = sum(layer.ms for layer in rest), sum(layer.share for layer in rest)
        blank = ("",) * (3 + joules)
        moved = output.size(sum(layer.bytes for layer in rest))
        rows.append(
            (output.count(len(rest), "more layer"), unit.number(ms), f"{share:.1%}", *blank[:3], moved, *blank[3:])
        )
    columns = [Column(title, name_of=True, least=20), Column(f"mean {unit.name}"), *LAYERS[2:]][: 7 + joules]
    return table(columns, rows, styles=[*[""] * min(count, len(made)), *["dim"] * bool(rest)])


def categories(run: Run) -> list[tuple[str, int]]:
    """The memory that is alive at the peak, per category, the largest first."""
    peak = run.memory_summary().peak_op
    row = next((row for row in run.op_rows if row.id == peak), None)
    return sorted(((name, size) for name, size in (row.live if row else {}).items() if size), key=lambda pair: -pair[1])


def memory(run: Run) -> RenderableType:
    """Memory by category at the peak, and the largest tensors of each category."""
    parts = categories(run)
    owners = run.memory_summary().owners
    whole = sum(size for _, size in parts) or 1
    return table(
        [Column("memory at the peak", name_of=True), Column("bytes"), Column("share"), Column("largest", name_of=True)],
        [
            (
                name,
                output.size(size),
                f"{size / whole:.1%}",
                next((f"{o.name} {output.size(o.bytes)}" for o in owners if o.category == name), ""),
            )
            for name, size in parts
        ],
    )


def tuning(run: Run) -> str:
    """Which ops have no tuning record, and what `handheld tune` would gain; "" if not known."""
    known = run.untuned()
    if known is None or not known.variants:
        return ""
    if not known.ops:
        return f"all {output.count(known.variants, 'op')} with variants have a tuning record"
    text = f"{output.count(len(known.ops), 'op')} without a tuning record take {known.ms:.3f} ms of a step; "
    if known.gain_ms is None or known.low_ms is None or known.high_ms is None:
        return text + "no record says what handheld tune would gain"
    if known.high_ms < LEAST_MS:
        return text + "handheld tune would probably gain nothing"
    return (
        text + f"handheld tune would gain about {known.gain_ms:.3f} ms "
        f"({known.low_ms:.3f} to {known.high_ms:.3f}; from {known.basis})"
    )
