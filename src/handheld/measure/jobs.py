"""What can be tuned in a step: its distinct signatures, the heaviest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from handheld.device import DeviceCaps
from handheld.graph.dtypes import DTYPES
from handheld.graph.graph import Graph, GraphInput, GraphOutput, Node
from handheld.kernels import attention, contract
from handheld.kernels.base import Choice
from handheld.plan.lowering import candidates
from handheld.plan.signature import signature

FLOPS_PER_BYTE = 10  # Roughly what a device computes while it moves one byte; used only for the order.


@dataclass
class Job:
    """One signature: a graph with one node that has it, and how often a step runs such a node."""

    signature: str
    graph: Graph
    candidates: tuple[Choice, ...]
    weight: float
    count: int = 1

    @property
    def share(self) -> float:
        """The estimated share of the step's time, without a unit."""
        return self.weight * self.count


def find_jobs(graphs: Iterable[Graph], caps: DeviceCaps) -> list[Job]:
    """One job per signature whose family offers more than one variant."""
    jobs: dict[str, Job] = {}
    plain: set[str] = set()
    for graph in graphs:
        for node in graph.nodes:
            key = signature(node, graph)
            if key in jobs:
                jobs[key].count += 1
            elif key not in plain:
                offered = candidates(node, graph, caps)
                if len(offered) > 1:
                    jobs[key] = Job(key, alone(node, graph), offered, _weight(node, graph))
                else:
                    plain.add(key)
    return sorted(jobs.values(), key=lambda job: -job.share)


def alone(node: Node, graph: Graph) -> Graph:
    """A graph of this node alone: its inputs and outputs become the graph's."""
    inputs = sorted({view.tensor for view in node.inputs})
    tensors = {t: replace(graph.tensors[t], role="input", name="") for t in inputs}
    tensors |= {t: replace(graph.tensors[t], role="activation", name="") for t in node.outputs}
    return Graph(
        "node",
        tensors,
        (node,),
        tuple(GraphInput(f"x{t}", t, _torch_dtype(tensors[t].dtype)) for t in inputs),
        {},
        (),
        tuple(GraphOutput(f"y{t}", graph.view(t), _torch_dtype(tensors[t].dtype)) for t in node.outputs),
    )


def _torch_dtype(dtype: str) -> str:
    """The type that the caller passes and gets for a tensor: half-precision tensors are float32 outside a plan."""
    return DTYPES[DTYPES[dtype].value].torch


def _weight(node: Node, graph: Graph) -> float:
    tensors = {view.tensor for view in node.inputs} | set(node.outputs)
    nbytes = sum(graph.tensors[t].nbytes for t in tensors)
    flops = 0
    if node.op == "matmul" or node.op.startswith("conv"):
        flops = contract.flops(node, graph)
    elif node.op.startswith("attention"):
        flops = attention.flops(node, graph)
    return max(nbytes, flops / FLOPS_PER_BYTE)
