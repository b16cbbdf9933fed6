"""The passes, in order. Each is followed by the legality check, and named if it breaks a graph."""
from __future__ import annotations
from typing import Any
from handheld.graph.graph import Graph
def optimize(graph: Graph, state: Any) -> Graph:
    return graph
