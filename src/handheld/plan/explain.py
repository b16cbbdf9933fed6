"""Describes a plan as text: the schedule, the memory, each kernel and why it was chosen."""

from __future__ import annotations

import math
import textwrap

from handheld.errors import PlanError
from handheld.graph.graph import ROLES
from handheld.graph.text import show_node
from handheld.kernels.base import Choice
from handheld.plan.fit import Fit, fit_text, fits_of
from handheld.plan.moves import moved_text
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.transfers import transfers
from handheld.plan.ways import described
from handheld.units import count, size

MIB = 2**20


def explain(plan: Plan, only: str | None = None, width: int = 80) -> str:
    if only is not None and only not in plan.graphs:
        raise PlanError(f"the plan has no graph {only!r}; it has {', '.join(plan.graphs)}")
    lines = [
        f"plan for {plan.device} ({plan.caps.name}, {plan.caps.kind})",
        f"memory {size(plan.bytes)} in {count(len(plan.segments), 'segment')}; arena {size(plan.arena_bytes)}",
    ]
    lines += [f"avoided on this driver: {line}" for line in described(plan.caps.avoid)]
    if text := fit_text(plan.options, plan.bytes):
        lines.append(f"to fit: {text}")
    if plan.units:
        lines.append(_state_text(plan))
    if text := moved_text(plan):
        lines.append(f"outside the device: {text}")
    for name in plan.graphs:
        lines += _explain_moves(name, plan.graphs[name]) if only is None or name == only else []
    for name, fit in fits_of(plan.options).items():
        lines += _explain_fit(name, fit) if only is None or name == only else []
    for name, graph in plan.graphs.items():
        if only is None or name == only:
            lines += ["", *_explain_graph(name, graph)]
    return "\n".join(part for line in lines for part in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    """Wraps a line at `width` columns. Continuation lines are indented further than the first."""
    if len(line) <= width:
        return [line]
    start = len(line) - len(line.lstrip())
    return textwrap.wrap(
        line,
        max(width, 20),
        initial_indent=" " * start,
        subsequent_indent=" " * (start + 4 if start < 4 else 8),
        break_on_hyphens=False,
    )


def _explain_graph(name: str, plan: GraphPlan) -> list[str]:
    graph = plan.graph
    sizes = {role: sum(t.nbytes for t in graph.tensors.values() if t.role == role) for role in ROLES}
    by_role = ", ".join(f"{role} {size(n)}" for role, n in sizes.items() if n)
    lines = [
        f"graph {name}: {count(len(graph.nodes), 'node')}, {count(plan.launches, 'launch')} of "
        f"{count(plan.programs, 'program')}, {count(len(graph.inputs), 'upload')}, "
        f"{len(plan.copies)} {'copy' if len(plan.copies) == 1 else 'copies'}",
        f"tensors (without reuse): {by_role}",
    ]
    for i, (node, lowered) in enumerate(zip(graph.nodes, plan.lowered, strict=True)):
        lines.append(f"{i:4d}  {show_node(node, graph)}")
        for launch in lowered.launches[:1]:
            rest = len(lowered.launches) - 1
            more = f" and {count(rest, 'more launch')}" if rest else ""
            lines.append(
                f"        {launch.kernel} {launch.global_size}/{launch.local_size}{more}; "
                f"{lowered.why}; {_variant(plan.tuned.get(i))}"
            )
        where = ", ".join(f"%{t} at {p.segment}:{p.offset}" for t in node.outputs if (p := plan.places.get(t)))
        lines.append(f"        {where}")
    for value, slot in plan.copies:
        lines.append(f"      copy %{value} into slot %{slot}")
    return lines


def _explain_fit(name: str, fit: Fit) -> list[str]:
    """What is computed again: the total, and then each value, largest first; and what is computed in pieces."""
    if not fit.repeats and fit.thin:
        return _explain_pieces(name, fit)
    if not fit.repeats:
        return [f"{name} computes nothing again to fit: another order of the backward pass is enough"]
    seconds, saved = sum(r.seconds for r in fit.repeats), sum(r.nbytes for r in fit.repeats)
    lines = [
        f"{name} computes again in the backward pass: {count(len(fit.repeats), 'value')}, {size(saved)} that need not "
        f"stay in memory, {1e3 * seconds:.3g} ms; the step is predicted to take "
        f"{1e3 * fit.seconds * (1 + fit.more):.3g} ms instead of {1e3 * fit.seconds:.3g} ms ({fit.source})"
    ]
    for repeat in fit.repeats:
        kept = size(repeat.nbytes) if repeat.nbytes else "for others"
        times = f", {repeat.times} times" if repeat.times > 1 else ""
        op = repeat.torch_op.removeprefix("aten.").removesuffix(".default")
        lines.append(f"{kept:>12} {1e3 * repeat.seconds:8.3g} ms  {repeat.path or 'the model'}, {op}{times}")
    if fit.thin:
        lines += _explain_pieces(name, fit)
    if not fit.outputs:
        lines.append("the model's outputs are not kept; the loss is")
    return lines


def _explain_pieces(name: str, fit: Fit) -> list[str]:
    return [
        f"{name} computes {count(len(fit.thin), 'value')} in {fit.pieces} pieces of the batch, one piece at a time: "
        "they are never in memory as a whole, and are computed anew by each loop that reads them"
    ]


def _state_text(plan: Plan) -> str:
    """What of the optimizer's state is stored in fewer bits."""
    own = [slot for slot in plan.step.slots.values() if slot.role == "optimizer"]
    now = sum(plan.state[name].nbytes for name, slot in plan.slots.items() if slot.role == "optimizer")
    values, stored = sum(math.prod(slot.shape) for slot in own), sum(sum(unit.sizes) for unit in plan.units)
    return (
        f"optimizer state in {plan.units[0].bits} bits: {stored:,} of {values:,} values, {size(now)} instead of "
        f"{size(4 * values)}"
    )


def _explain_moves(name: str, plan: GraphPlan) -> list[str]:
    """What is moved out of the device and back, and what is brought in, largest first."""
    graph, found = plan.graph, transfers(plan.graph).values()
    streamed = set(graph.slots.values())
    lines = []
    for tensor, nbytes in sorted({t.host: t.nbytes for t in found}.items(), key=lambda item: -item[1]):
        copies = [t for t in found if t.host == tensor]
        back = copies[-1].node
        origin = graph.nodes[back].origin
        times = count(len(copies), "time")
        what = (
            f"{graph.tensors[tensor].name}, brought in {times}"
            if tensor in streamed
            else f"{origin.path or 'the model'}"
        )
        op = "" if tensor in streamed else f", {origin.torch_op.removeprefix('aten.').removesuffix('.default')}"
        lines.append(f"{size(nbytes):>12}  {what}{op}")
    return [f"{name} moves:", *lines] if lines else []


def _variant(choice: Choice | None) -> str:
    if choice is None:
        return "default"
    return "tuned: " + ", ".join(f"{name} {value}" for name, value in choice.items())
