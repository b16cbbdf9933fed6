"""Which kernel family runs which op, and which variants of it there are.

A family that has variants offers them by `candidates(node, graph, caps)`, its own choice first, and
takes one as the fourth argument of its lowering.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels import attention, contract, index, loops, naive, order, pool, recurrent, rows
from handheld.kernels.base import Lower, Lowered
from handheld.plan.signature import signature

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
    }
)


#: in the place of the families above, for comparison: plan_step(..., naive=True) of run/planning.py
NAIVE: Mapping[str, Lower] = MappingProxyType({"matmul": naive.lower_matmul})

#: parameters of a variant
Choice = Mapping[str, int]


def lower(node: Node, graph: Graph, caps: DeviceCaps, choice: Choice | None = None, naive: bool = False) -> Lowered:
    """A node as launches, or an error that says where in the model it stands. Without a `choice`
    the family makes its own. `naive`: as a published baseline, where there is one of the op."""
    family: Callable[..., Lowered] = FAMILIES[node.op]
    if naive and node.op in NAIVE:
        family, choice = NAIVE[node.op], None
    try:
        return family(node, graph, caps, *(() if choice is None else (choice,)))
    except PlanError as error:
        origin = node.origin
        raise PlanError(f"{node.op} ({origin.phase} of {origin.path}, {origin.torch_op}): {error}") from None


def candidates(node: Node, graph: Graph, caps: DeviceCaps) -> tuple[Choice, ...]:
    """All variants of a node that are legal and worth a try, the family's own choice first; none
    where the family has no variants."""
    offer = getattr(_family(node.op), "candidates", None)
    return tuple(offer(node, graph, caps)) if offer else ()


def tuned_choice(node: Node, graph: Graph, caps: DeviceCaps, choices: Mapping[str, Choice]) -> Choice | None:
    """What the tuning record says of a node, if its family offers that."""
    if not choices or not hasattr(_family(node.op), "candidates"):
        return None
    choice = choices.get(signature(node, graph))
    return choice if choice in candidates(node, graph, caps) else None


def family(op: str) -> str:
    """The name of the kernel family that runs an op; empty for an op that there is not."""
    return FAMILIES[op].__module__.rpartition(".")[2] if op in FAMILIES else ""


def _family(op: str) -> ModuleType:
    return sys.modules[FAMILIES[op].__module__]
