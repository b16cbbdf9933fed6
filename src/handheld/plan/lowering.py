"""Which kernel family runs which op."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from handheld.device import DeviceCaps
from handheld.errors import PlanError
from handheld.graph.graph import Graph, Node
from handheld.kernels import contract, index, loops, order, pool, recurrent, rows
from handheld.kernels.base import Lower, Lowered

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
    }
)


def lower(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered:
    """A node as launches, or an error that says where in the model it stands."""
    try:
        return FAMILIES[node.op](node, graph, caps)
    except PlanError as error:
        origin = node.origin
        raise PlanError(
            f"{node.op} ({origin.phase} of {origin.path}, {origin.source}): {error}"
        ) from None
