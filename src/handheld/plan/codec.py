"""Converts plans to JSON data, and back. Each program text is written once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from handheld.device import DeviceCaps, canonical
from handheld.errors import HandheldError, PlanError
from handheld.graph.graph import Graph
from handheld.kernels.base import Arg, Buffer, Float, Int, Launch, Lowered, Start, Texture, Workspace
from handheld.plan.memory import Place, SlotCopy, WorkspaceKey
from handheld.plan.plan import GraphPlan, Plan
from handheld.plan.precision import prepare
from handheld.plan.verify import verify

if TYPE_CHECKING:
    from handheld.step import Step

VERSION = 3
_KINDS: dict[str, Callable[[int], Arg]] = {"buffer": Buffer, "start": Start, "workspace": Workspace, "int": Int}


def to_json(plan: Plan) -> dict[str, object]:
    """Returns the plan as plain data, without its graphs: those are in the step file."""
    texts: dict[str, int] = {}
    graphs = {name: _graph_to_json(g, texts) for name, g in plan.graphs.items()}
    return {
        "handheld": "plan",
        "version": VERSION,
        "device": plan.device,
        "caps": plan.caps.to_json(),
        "segments": list(plan.segments),
        "arena": plan.arena,
        "options": dict(plan.options),
        "state": {k: _place(p) for k, p in plan.state.items()},
        "graphs": graphs,
        "sources": list(texts),
    }


def _place(place: Place) -> list[int]:
    return [place.segment, place.offset, place.nbytes]


def _graph_to_json(graph: GraphPlan, texts: dict[str, int]) -> dict[str, object]:
    return {
        "nodes": [_lowered_to_json(low, texts) for low in graph.lowered],
        "tuned": [[n, dict(choice)] for n, choice in sorted(graph.tuned.items())],
        "places": [[t, *_place(p)] for t, p in sorted(graph.places.items())],
        "workspace": [[key.node, key.index, *_place(p)] for key, p in sorted(graph.workspace.items())],
        "copies": [list(c) for c in graph.copies],
    }


def _lowered_to_json(lowered: Lowered, texts: dict[str, int]) -> dict[str, object]:
    return {
        "why": lowered.why,
        "workspace": list(lowered.workspace),
        "launches": [
            {
                "kernel": n.kernel,
                "source": texts.setdefault(n.text, len(texts)),
                "args": [_arg_to_json(a) for a in n.args],
                "global": list(n.global_size),
                "local": list(n.local_size),
            }
            for n in lowered.launches
        ],
    }


def _arg_to_json(arg: Arg) -> list[object]:
    if isinstance(arg, Buffer):
        return ["buffer", arg.tensor]
    if isinstance(arg, Texture):
        return ["texture", arg.tensor, arg.floats]
    if isinstance(arg, Start):
        return ["start", arg.tensor]
    if isinstance(arg, Workspace):
        return ["workspace", arg.index]
    if isinstance(arg, Int):
        return ["int", arg.value]
    return ["float", arg.value if math.isfinite(arg.value) else repr(arg.value)]


def from_json(data: dict[str, Any], step: Step) -> Plan:
    """Reads a plan for the same step and verifies it like a new one. Raises PlanError if it is not valid."""
    if not isinstance(data, dict) or data.get("handheld") != "plan":
        raise PlanError("the data is not a plan. Try: make it with Plan.to_json()")
    if data.get("version") != VERSION:
        raise PlanError(
            f"the plan has version {data.get('version')!r}, but this version of Handheld reads {VERSION}. "
            "Try: make the plan again"
        )
    try:
        texts = [str(s) for s in data["sources"]]
        state = {str(k): Place(*map(int, p)) for k, p in data["state"].items()}
        options = dict(data["options"])
        names = [str(n) for n in data["graphs"]]
        missing = [n for n in names if n not in step.graphs]
        if missing:
            raise PlanError(f"the plan is for a graph {missing[0]!r} that the step does not have")
        caps = DeviceCaps.from_json(data["caps"])
        prepared, tables = prepare(step, names, caps, options["precision"], options["growth_steps"])
        graphs = {
            graph.name: _graph_from_json(g, graph, texts)
            for graph, g in zip(prepared, data["graphs"].values(), strict=False)
        }
        plan = Plan(
            step,
            canonical(str(data["device"])),
            caps,
            graphs,
            state,
            tuple(int(n) for n in data["segments"]),
            int(data["arena"]),
            options,
            tables,
        )
        for name, graph in graphs.items():
            if len(graph.lowered) != len(graph.graph.nodes):
                raise PlanError(f"the plan of graph {name!r} has the wrong number of nodes")
        verify(plan)
    except HandheldError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlanError("malformed plan: a part is missing or has the wrong type. Try: make the plan again") from error
    return plan


def _graph_from_json(data: dict[str, Any], graph: Graph, texts: list[str]) -> GraphPlan:
    lowered = tuple(_lowered_from_json(n, texts) for n in data["nodes"])
    places = {int(t): Place(int(a), int(b), int(c)) for t, a, b, c in data["places"]}
    workspace = {WorkspaceKey(int(n), int(i)): Place(int(a), int(b), int(c)) for n, i, a, b, c in data["workspace"]}
    copies = tuple(SlotCopy(int(a), int(b)) for a, b in data["copies"])
    tuned = {int(n): {str(k): int(v) for k, v in choice.items()} for n, choice in data["tuned"]}
    return GraphPlan(graph, lowered, places, workspace, copies, tuned)


def _lowered_from_json(data: dict[str, Any], texts: list[str]) -> Lowered:
    launches = tuple(
        Launch(
            str(n["kernel"]),
            texts[int(n["source"])],
            tuple(_arg_from_json(a) for a in n["args"]),
            tuple(int(v) for v in n["global"]),
            tuple(int(v) for v in n["local"]),
        )
        for n in data["launches"]
    )
    return Lowered(launches, tuple(int(v) for v in data["workspace"]), str(data["why"]))


def _arg_from_json(data: list[Any]) -> Arg:
    if data[0] == "texture":
        return Texture(int(data[1]), int(data[2]))
    kind, value = data
    if kind == "float":
        return Float(float(value))
    return _KINDS[kind](int(value))
