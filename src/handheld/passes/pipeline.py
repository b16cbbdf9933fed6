"""The list of passes, in order, and `optimize`, which runs them.

The graph is checked after every pass. If a pass makes an illegal graph, the error names the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handheld.errors import GraphError
from handheld.graph.check import check
from handheld.graph.graph import Graph
from handheld.passes.clean import merge_equal, remove_dead
from handheld.passes.constants import inline_constants
from handheld.passes.epilogue import fuse_epilogues
from handheld.passes.fuse import fuse_loops
from handheld.passes.pack import pack_updates
from handheld.passes.recompute import recompute
from handheld.passes.remake import remake

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (
    remove_dead,
    inline_constants,
    merge_equal,
    fuse_loops,
    recompute,
    fuse_epilogues,
    remake,
    remove_dead,
)


def optimize(graph: Graph, state: Any = None) -> Graph:
    """Runs all passes on a legal graph and returns the result."""
    slots = state.slots if state is not None else None
    layout = state.layout if state is not None else {}
    done: list[str] = []

    def pack(graph: Graph) -> Graph:
        return pack_updates(graph, layout)

    for step in (*PASSES, pack):
        try:
            graph = check(step(graph), slots, before=graph)
        except (GraphError, AssertionError, KeyError) as error:
            raise GraphError(f"pass {step.__name__} broke the graph (after {done}): {error}") from error
        done.append(step.__name__)
    return graph
