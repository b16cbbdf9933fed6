"""Depthwise convolutions of small planes on a CPU: turns nodes into launches of depthwise_lanes.cl.

Lanes are channels, so neither short rows nor steps of several pixels leave lanes idle. depthwise.py asks here first;
None means that it runs the node itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from handheld.device import DeviceCaps
from handheld.graph.dtypes import F32
from handheld.graph.graph import Graph, Node
from handheld.kernels.args import ints, line
from handheld.kernels.base import Arg, Buffer, Launch, Lowered, Workspace, read_cl, with_defines
from handheld.kernels.contract_nodes import live_taps
from handheld.kernels.expr import epilogue
from handheld.kernels.reshape import OWN, flat_epilogue, unit, within, within_reach

LANES = 16
TILE, PIXELS, TAPS, PHASES = 1280, 1024, 32, 16  # The same as in depthwise_lanes.cl.
LEAST_CHANNELS = 9  # With fewer, too many lanes would be idle.
#: The most pixels of a plane without strides if vectors are narrower than 16 floats: longer rows fill those vectors.
NARROW_PIXELS = 128
TURNS = 4  # work-items per compute unit, if the images allow it
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Output y and tap r need pixel (y + off + r*e) / phase, or with one phase y*u + off + r*e."""

    taps: Pair
    unit_step: Pair
    tap: Pair
    off: Pair
    phases: Pair
    #: the first tap that is used
    first: Pair = (0, 0)

    def tile(self, image: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, int, int, int]:
        """The place of pixel (0, 0) in the tile, and the size of the tile: all pixels that are read or copied."""
        ends = []
        for n, size, taps, u, e, off, phase in zip(
            out, image, self.taps, self.unit_step, self.tap, self.off, self.phases, strict=True
        ):
            last = (n - 1) if phase > 1 else (n - 1) * u
            low, high = off + min((taps - 1) * e, 0), last + off + max((taps - 1) * e, 0)
            before = max(-(low // phase), 0)
            ends.append((before, before + max(-(-high // phase) + 1, size)))
        (top, high), (left, wide) = ends
        return top, left, high, wide


def lower(node: Node, graph: Graph, caps: DeviceCaps, geometry: Geometry) -> Lowered | None:
    """conv and conv_input. None if another kernel should run the node."""
    x, w = (unit(view) for view in node.inputs[:OWN])
    out = tuple(node.attrs["shape"])
    if not _applies(node, graph, caps, w.shape[0], (*out[2:], *x.shape), geometry):
        return None
    if geometry.phases == (1, 1):
        geometry = _without_dead_taps(geometry, out[2:], x.shape[2:])
    top, left, high, wide = geometry.tile(x.shape[2:], out[2:])
    if high * wide > TILE:
        return None
    within_reach(node, x, out[2:], geometry.unit_step, geometry.taps, geometry.tap, geometry.off)
    flat = flat_epilogue(node)
    end = epilogue(flat or node, graph, OWN)
    rows, cols = (flat or node).attrs["shape"][2:]
    groups, images = -(-out[1] // LANES), out[0]
    part = -(-images // min(images, -(-TURNS * caps.compute_units // groups)))
    w_0 = w.offset + geometry.first[0] * w.strides[2] + geometry.first[1] * w.strides[3]
    args: tuple[Arg, ...] = (
        Buffer(x.tensor),
        *ints(x.offset, *x.strides, *x.shape[2:]),
        Buffer(w.tensor),
        *ints(w_0, w.strides[0], *w.strides[2:], *out[2:], *geometry.taps, *geometry.unit_step, *geometry.tap),
        *ints(*geometry.off, *geometry.phases, top, left, high, wide, out[1], images, part, rows, cols),
    )
    defines = {"MODE": 1, "EPILOGUE_PARAMS": end.params, "EPILOGUE": end.body.replace("\n", " ")}
    text = with_defines(defines, end.helpers + read_cl("wide.cl") + read_cl("depthwise_lanes.cl"))
    launch = Launch("conv_lanes", text, args + end.args, (groups, -(-images // part)), (1, 1))
    return Lowered((launch,), why=f"depthwise, {LANES} channels at a time")


def lower_weight(node: Node, graph: Graph, caps: DeviceCaps, geometry: Geometry) -> Lowered | None:
    """conv_weight. None if another kernel should run the node."""
    dy, x = (unit(view) for view in node.inputs[:OWN])
    out, rows = tuple(node.attrs["shape"]), dy.shape[2:]
    if not _applies(node, graph, caps, out[0], (*rows, *x.shape), geometry):
        return None
    top, left, high, wide = geometry.tile(x.shape[2:], rows)
    if high * wide > TILE:
        return None
    within_reach(node, x, rows, geometry.unit_step, geometry.taps, geometry.tap, geometry.off)
    groups, images, size = -(-out[0] // LANES), dy.shape[0], math.prod(out)
    part = -(-images // min(images, -(-caps.compute_units // groups)))
    parts = -(-images // part)
    within(node, parts * size, "partial sums")
    to: Arg = Workspace(0) if parts > 1 else Buffer(node.outputs[0])
    args: tuple[Arg, ...] = (
        Buffer(x.tensor),
        *ints(x.offset, *x.strides, *x.shape[2:]),
        Buffer(dy.tensor),
        *ints(dy.offset, *dy.strides, *rows, *geometry.taps, *geometry.unit_step, *geometry.tap, *geometry.off),
        *ints(top, left, high, wide, out[0], images, part),
        to,
    )
    text = with_defines({"MODE": 2}, "".join(map(read_cl, ("wide.cl", "depthwise_lanes.cl", "combine.cl"))))
    launches, why = (
        [Launch("weight_lanes", text, args, (groups, parts), (1, 1))],
        f"depthwise, {LANES} channels at a time",
    )
    if parts == 1:
        return Lowered(tuple(launches), why=why)
    sums: tuple[Arg, ...] = (Workspace(0), *ints(parts, size), Buffer(node.outputs[0]))
    launches.append(line("combine", text, sums, size, caps))
    return Lowered(tuple(launches), (4 * parts * size,), f"{why}, images in {parts} parts")


def _applies(
    node: Node, graph: Graph, caps: DeviceCaps, channels: int, sizes: tuple[int, ...], geometry: Geometry
) -> bool:
    """Whether planes are small enough and channels enough. `sizes`: pixels of the output or of dy, then the shape of x.
    One channel of the input has one of the output."""
    high, wide, images, inputs, *image = sizes
    strided = math.prod(geometry.unit_step) * math.prod(geometry.phases) > 1
    most = PIXELS if strided or caps.vector_width >= LANES else NARROW_PIXELS
    own = [graph.tensors[view.tensor].dtype for view in node.inputs[:OWN]]
    own += [graph.tensors[out].dtype for out in node.outputs] if node.op == "conv_weight" else []
    return (
        caps.kind == "cpu"
        and channels == inputs == node.attrs["groups"] >= LEAST_CHANNELS
        and all(dtype == F32 for dtype in own)
        and 0 < high * wide <= most
        and 0 < math.prod(image) <= PIXELS
        and images > 0
        and math.prod(geometry.taps) <= TAPS
        and math.prod(geometry.phases) <= PHASES
    )


def _without_dead_taps(geometry: Geometry, rows: tuple[int, ...], image: tuple[int, ...]) -> Geometry:
    """Without taps that see only padding, as the outer ones over an image of one pixel."""
    first, taps = live_taps(rows, geometry.unit_step, geometry.tap, geometry.off, image, geometry.taps)
    down, right = (o + low * e for o, low, e in zip(geometry.off, first, geometry.tap, strict=True))
    return Geometry(taps, geometry.unit_step, geometry.tap, (down, right), (1, 1), first)
