"""A graph made smaller for a memory limit. limits/ decides how; `Fit` is the decision, and `fitted` carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from handheld.errors import PlanError
from handheld.graph.graph import Graph
from handheld.passes.again import compute_again, droppable, without_remade
from handheld.passes.clean import remove_dead
from handheld.passes.lean import apart, inline_again, products_early, sums_in_products
from handheld.passes.pieces import can_be_thin, in_pieces
from handheld.passes.reorder import reorder
from handheld.plan.moves import moves_line
from handheld.units import count
from handheld.units import size as size_text


@dataclass(frozen=True)
class Repeat:
    """A value that is computed again: the module and the PyTorch op that it comes from, the bytes that need not stay
    in memory, the predicted seconds, and how many times."""

    path: str
    torch_op: str
    nbytes: int
    seconds: float
    times: int = 1

    def to_json(self) -> list[Any]:
        return [self.path, self.torch_op, self.nbytes, self.seconds, self.times]


@dataclass(frozen=True)
class Fit:
    """What a graph does to need less memory.

    `dropped` are the values of the forward pass that are computed again in the backward pass, if it needs them. Without
    `outputs`, the model's outputs are not kept until the end of the step; the loss is. `more` is the predicted
    additional time, as a share of the step, and `bytes_before` what the plan needed without the fit.

    `repeats` are the computations that a plan without a limit does not have, `seconds` the predicted time of the step
    without them, and `source` says how times are known. `brief` are dropped values that do not stay in memory if they
    were computed only for another value (passes/again.py). `thin` are values that are computed in `pieces` pieces and
    never exist as a whole (passes/pieces.py); they are numbered as in the graph with all else carried out.
    """

    dropped: tuple[int, ...]
    outputs: bool = True
    more: float = 0.0
    bytes_before: int = 0
    repeats: tuple[Repeat, ...] = ()
    seconds: float = 0.0
    source: str = ""
    brief: tuple[int, ...] = ()
    thin: tuple[int, ...] = ()
    pieces: int = 1

    def to_json(self) -> dict[str, Any]:
        return {
            "dropped": list(self.dropped),
            "outputs": self.outputs,
            "more": self.more,
            "bytes_before": self.bytes_before,
            "repeats": [repeat.to_json() for repeat in self.repeats],
            "seconds": self.seconds,
            "source": self.source,
            "brief": list(self.brief),
            "thin": list(self.thin),
            "pieces": self.pieces,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Fit:
        dropped: Sequence[int] = data["dropped"]
        repeats = tuple(Repeat(*fields) for fields in data["repeats"])
        numbers = data["more"], data["bytes_before"]
        fit = Fit(tuple(dropped), data["outputs"], *numbers, repeats, data["seconds"], data["source"])
        brief, thin = tuple(data.get("brief", ())), tuple(data.get("thin", ()))
        return replace(fit, brief=brief, thin=thin, pieces=data.get("pieces", 1))


def fits_of(options: Mapping[str, Any]) -> dict[str, Fit]:
    """The fits in the options of a plan, by graph. Empty if it fits as it is."""
    return {name: Fit.from_json(data) for name, data in (options.get("fit") or {}).items()}


def fit_text(options: Mapping[str, Any], nbytes: int) -> str:
    """What a plan of `nbytes` with these options does to fit, in one line; "" if it fits as it is."""
    fits, parts = list(fits_of(options).values()), options.get("parts")
    if parts:
        before = f" instead of {size_text(parts['bytes_before'])}" if "bytes_before" in parts else ""
        values = max((len(fit.repeats) for fit in fits), default=0)
        again = f", each with {count(values, 'value')} computed again" if values else ""
        again += f", {line}" if (line := pieces_line(options)) else ""
        moved = f", {line}" if (line := moves_line(options, timed=False)) else ""
        time = more_text(parts.get("more", 0.0))
        return f"{size_text(nbytes)}{before}: {parts_text(options)}{again}{moved}, {time}"
    if moved := moves_line(options):
        fits = [fit for fit in fits if fit.repeats]
        again = f"; {count(sum(len(fit.repeats) for fit in fits), 'value')} computed again" if fits else ""
        return f"{size_text(nbytes)} instead of {size_text(options['moves']['bytes_before'])}: {moved}{again}"
    if not fits:
        return ""
    values = sum(len(fit.repeats) for fit in fits)
    more = max(fit.more for fit in fits)
    again = f"{count(values, 'value')} computed again" if values else "another order of the backward pass"
    again += f", {line}" if (line := pieces_line(options)) else ""
    lost = "" if all(fit.outputs for fit in fits) else "; outputs of the training step are not kept"
    return f"{size_text(nbytes)} instead of {size_text(fits[0].bytes_before)}: {again}, {more_text(more)}{lost}"


def parts_text(options: Mapping[str, Any]) -> str:
    """How a plan with these options divides batches; "" if it does not."""
    parts = options.get("parts")
    if not parts:
        return ""
    return f"{count(-(-parts['batch'] // parts['size']), 'micro-batch')} of {count(parts['size'], 'sample')}"


def pieces_line(options: Mapping[str, Any]) -> str:
    """The values that a plan with these options computes in pieces; "" if there are none."""
    fits = [fit for fit in fits_of(options).values() if fit.thin]
    if not fits:
        return ""
    most = max(fit.pieces for fit in fits)
    return f"{count(sum(len(fit.thin) for fit in fits), 'value')} computed in {most} pieces"


def fit_summary(options: Mapping[str, Any], nbytes: int) -> dict[str, Any]:
    """The same as plain data: bytes, the values that are computed again, the additional time as a share of the step."""
    fits, parts = list(fits_of(options).values()), options.get("parts")
    return {
        "bytes": nbytes,
        "micro_batches": -(-parts["batch"] // parts["size"]) if parts else 1,
        "values": sum(len(fit.repeats) for fit in fits),
        "pieces": max((fit.pieces for fit in fits), default=1),
        "more": parts["more"] if parts else max((fit.more for fit in fits), default=0.0),
        "outputs": all(fit.outputs for fit in fits),
        "text": fit_text(options, nbytes),
    }


def more_text(more: float) -> str:
    """Predicted additional time: `about 9% more time`."""
    return "no more time" if more < 0.005 else f"about {more:.0%} more time"


def spread_out(graph: Graph, outputs: bool = True) -> tuple[Graph, frozenset[int]]:
    """The graph about which a search decides, and the values that it drops anyway."""
    if not outputs:
        kept = tuple(shown for shown in graph.outputs if shown.name == "loss")
        graph = remove_dead(replace(graph, outputs=kept))
    graph, remade = without_remade(graph)
    return reorder(apart(inline_again(products_early(sums_in_products(graph))))), remade


def fitted(graph: Graph, fit: Fit) -> Graph:
    """Returns the graph with the decision carried out."""
    wide, _ = spread_out(graph, fit.outputs)
    unknown = set(fit.dropped) - droppable(wide).keys()
    if unknown:
        raise PlanError(
            f"the fit is for another graph than {graph.name!r}: it has no values {sorted(unknown)[:5]} to drop. "
            "Try: plan again with memory_limit_bytes"
        )
    small = compute_again(wide, fit.dropped, fit.brief)
    if not fit.thin:
        return small
    if not set(fit.thin) <= small.tensors.keys() or not can_be_thin(small, fit.thin, fit.pieces):
        raise PlanError(
            f"the fit is for another graph than {graph.name!r}: {len(fit.thin)} of its values cannot be computed in "
            f"{fit.pieces} pieces. Try: plan again with memory_limit_bytes"
        )
    return in_pieces(small, fit.thin, fit.pieces)
