"""stub"""
from handheld.device import DeviceCaps
from handheld.graph.graph import Graph, Node
from handheld.kernels.base import Lowered
def applies(node: Node) -> bool: return False
def lower_conv(node: Node, graph: Graph, caps: DeviceCaps) -> Lowered: raise NotImplementedError
lower_conv_input = lower_conv_weight = lower_conv
