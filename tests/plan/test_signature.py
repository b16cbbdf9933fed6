"""Signatures are the keys of tuning records, so existing records must still find their nodes."""

from __future__ import annotations

import pytest

import handheld
from handheld.device import DeviceCaps
from handheld.plan.signature import signature
from helpers.models import loss, make

#: A change here voids the tuning records of such nodes.
GOLDEN = {
    ("vision", "float32"): [
        "conv 4x3x18x18 8x3x3x3 > 4x8x9x9 stride=2x2 padding=1x1 e0",
        "conv 4x8x9x9 8x1x3x3 > 4x8x9x9 padding=1x1 groups=8 e5",
        "conv_input 4x8x9x9 8x8x1x1 > 4x8x9x9 e0",
        "conv_weight 4x8x9x9 4x8x9x9 > 8x8x1x1",
        "max_pool 4x8x9x9 > 4x8x5x5 kernel=3x3 stride=2x2 padding=1x1 adaptive=False",
        "matmul 4x5 5x8 > 4x8 e4",
        "map 4x8x5x5/8x1x0x0 > 4x8x5x5 pc9c61f44",
        "reduce 4:i32 4x5 > 4 axes=0 p8f925116",
        "reduce 4x8x9x9 4x8x9x9/0x1x0x0 4x8x9x9/0x1x0x0 4x8x9x9/0x1x0x0 4x8x9x9/0x1x0x0 > 4x8x9x9 axes=0x2x3 pb2330d5a",
        "map 2304 2304 2304 2304/0 > 2304 p21dae1c5",
    ],
    ("vision", "half"): [
        "conv 4x8x9x9:f16 8x8x1x1 > 4x8x9x9 f16 e4",
        "max_pool 4x8x9x9:f16 > 4x8x5x5 kernel=3x3 stride=2x2 padding=1x1 adaptive=False",
        "reduce 18x128:f16 18x128/1x0:i32 > 18x128 axes=1 p2de9d43e",
        "map 2304 2304:f16 2304 2304/0 2304/0 2304/0:bool > 2304 p9af5d5e7",
    ],
    ("language", "float32"): [
        "lstm 7x3x64 64x16 3x16 3x16 reverse=False",
        "map 7x3x16/1x7x0:i32 23x16 > 7x3x16 pf301a347",
        "scatter 1x21x16/0x1x0:i32 1x21x16 > 1x23x16 mode=add base=False",
        "matmul 21x16 16x48/1x16 > 21x48 e2",
    ],
    ("attention", "float32"): [
        "attention 3x2x7x8/16x8x48x1 3x2x7x8/16x8x48x1 3x2x7x8/16x8x48x1 1:i32 1:i32 dropout=0.1",
        "reduce 3x7x16 3x7x16/16x48x1 3x7x16/0x0x1 3x7x16/0x0x1 > 3x7x16 axes=2 p6de89045",
        "reduce 21x32 21x32 21x32/0x0:i32 21x32/0x0:i32 > 21x32 axes=0 p06d2d1d3",
    ],
}


@pytest.mark.parametrize(("name", "precision"), GOLDEN)
def test_signatures_stay_what_records_know(name: str, precision: str) -> None:
    model, optimizer, batch = make(name)
    step = handheld.capture(model, loss, optimizer, batch)
    plan = step.plan("opencl", caps=DeviceCaps.shipped("mali-g78"), precision=precision)
    found = {signature(node, made.graph) for made in plan.graphs.values() for node in made.graph.nodes}
    assert not set(GOLDEN[name, precision]) - found
