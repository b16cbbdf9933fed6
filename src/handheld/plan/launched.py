"""How an op is launched, for the energy model: the name, the work-groups and the work-items of its main launch."""

from __future__ import annotations

import math
from collections import Counter

from handheld.cost.energy import Effort
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Lowered
from handheld.plan.work import flops, nbytes


def main_launch(node: Node, graph: Graph, lowered: Lowered) -> Effort | None:
    """The op with its main launch: of the kernel that it launches most often; of several, the first. None without
    launches."""
    if not lowered.launches:
        return None
    names = Counter(launch.kernel for launch in lowered.launches)
    kernel, _ = names.most_common(1)[0]
    launch = next(launch for launch in lowered.launches if launch.kernel == kernel)
    items = math.prod(launch.global_size)
    return Effort(
        node.op,
        kernel,
        int(flops(node, graph)),
        int(nbytes(node, graph)),
        len(lowered.launches),
        items // max(math.prod(launch.local_size), 1),
        items,
    )
