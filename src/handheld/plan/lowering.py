"""Turns a node into launches: which kernel family runs which op, and with which variant.

A family with variants has a function `candidates(node, graph, caps)`, which lists them with its default first.
Its lowering takes one of them as the fourth argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels import attention, contract, ctc, index, loops, naive, order, pool, recurrent, rows
from handheld.kernels.base import Choice, Lower, Lowered
from handheld.plan.signature import signature
from handheld.plan.ways import precision_of, refused, way_of

FAMILIES: Mapping[str, Lower] = MappingProxyType(
    {
        "map": loops.lower_map,
        "reduce": rows.lower_reduce,
        "matmul": contract.lower_matmul,
        "conv": contract.lower_conv,
        "conv_input": contract.lower_conv_input,
        "conv_weight": contract.lower_conv_weight,
        "max_pool": pool.lower_max_pool,
        "max_pool_grad": pool.lower_max_pool_grad,
        "avg_pool": pool.lower_avg_pool,
        "avg_pool_grad": pool.lower_avg_pool_grad,
        "scatter": index.lower_scatter,
        "assign": index.lower_assign,
        "scan": order.lower_scan,
        "sort": order.lower_sort,
        "lstm": recurrent.lower_lstm,
        "lstm_grad": recurrent.lower_lstm_grad,
        "gru": recurrent.lower_gru,
        "gru_grad": recurrent.lower_gru_grad,
        "attention": attention.lower_attention,
        "attention_grad": attention.lower_attention_grad,
        "ctc": ctc.lower_ctc,
        "ctc_grad": ctc.lower_ctc_grad,
    }
)


#: Baselines that replace the families above with plan_step(..., naive=True) in run/planning.py, for comparison.
NAIVE: Mapping[str, Lower] = MappingProxyType({"matmul": naive.lower_matmul})


def lower(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None, naive: bool = False) -> Lowered:
    """Returns the launches of a node. Raises PlanError that names the place of the node in the model.

    Without a `choice` the family uses its default. With `naive`, ops that have a published baseline use it.
    """
    family: Callable[..., Lowered] = FAMILIES[node.op]
    if naive and node.op in NAIVE:
        family, choice = NAIVE[node.op], None
    try:
        caps, avoided = way_of(node.op, caps, precision_of(node, graph))
        lowered = family(node, graph, caps, *(() if choice is None else (choice,)))
        return replace(lowered, why=", ".join(filter(None, (lowered.why, avoided)))) if avoided else lowered
    except PlanError as error:
        origin = node.origin
        raise PlanError(f"{node.op} ({origin.phase} of {origin.path}, {origin.torch_op}): {error}") from None


class Lowerings:
    """Lowers nodes, and remembers the launches of those that were lowered before.

    For plans that are made one after the other of the same graphs, for one device and with the same options. It knows
    nodes by their identity, so a changed node is another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Node, Choice | None, Lowered]] = {}

    def lower(
        self, node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None, naive: bool = False
    ) -> Lowered:
        """As the function `lower`."""
        known = self._known.get(id(node))
        if known is not None and known[0] is node and known[1] == choice:
            return known[2]
        lowered = lower(node, graph, caps, choice, naive)
        self._known[id(node)] = node, choice, lowered
        return lowered


def candidates(node: Node, graph: Graph, caps: DeviceCaps) -> tuple[Choice, ...]:
    """Returns the legal variants of a node that are worth trying, with the default of the family first.

    The result is empty if the family has no variants.
    """
    precision = precision_of(node, graph)
    offer = None if refused(node.op, caps, precision) else getattr(_family(node.op), "candidates", None)
    return tuple(offer(node, graph, way_of(node.op, caps, precision)[0])) if offer else ()


def tuned_choice(node: Node, graph: Graph, caps: DeviceCaps, choices: Mapping[str, Choice]) -> Choice | None:
    """Returns the choice of the tuning record for a node; None if there is none or its family does not offer it."""
    if not choices or not hasattr(_family(node.op), "candidates"):
        return None
    choice = choices.get(signature(node, graph))
    return choice if choice is not None and choice in candidates(node, graph, caps) else None


def family(op: str) -> str:
    """Returns the name of the kernel family that runs an op, or "" for an unknown op."""
    return FAMILIES[op].__module__.rpartition(".")[2] if op in FAMILIES else ""


def _family(op: str) -> ModuleType:
    return sys.modules[FAMILIES[op].__module__]
