"""Placement per op, with every tensor passing through the host: the same bits as a step on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.store.commands import DOWNLOAD, LAUNCH, UPLOAD
from handheld.studies.per_op import PerOp


@pytest.fixture(scope="module")
def trained() -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    batch = (torch.randn(10, 6), torch.randint(3, (10,)))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)  # packed updates, counters, statistics
    return handheld.capture(model, F.cross_entropy, optimizer, batch), batch


def test_a_step_gives_the_same_bits(trained):
    step, batch = trained
    resident, other = step.copy(), step.copy()
    apart = PerOp(other.plan("opencl", graphs=["train"]))
    with resident.plan("opencl", graphs=["train"]).start() as trainer:
        for _ in range(3):
            loss = trainer.step(*batch)
            times = apart.step(*batch)
            assert apart.loss() == float(loss)
    nodes = apart.graph.nodes
    assert [one.node for one in times] == list(range(len(nodes)))
    assert all(one.launch_ns > 0 and one.download_ns > 0 for one in times)
    changed = 0
    for name, slot in resident.slots.items():
        if name in apart.graph.slots:
            assert np.array_equal(apart.slot(name), resident.values[name]), name
            changed += slot.role != "constant" and not np.array_equal(resident.values[name], step.values[name])
    assert changed > 8
    apart.close()


def test_what_crosses_is_counted_and_recorded(trained):
    step, batch = trained
    apart = PerOp(step.copy().plan("opencl", graphs=["train"]))
    apart.step(*batch)
    before = apart.session.counters
    uploads, up_bytes, downloads, down_bytes = apart.crossings
    start = (before.uploads, before.upload_bytes, before.downloads, before.download_bytes)
    assert start == (uploads, up_bytes, downloads, down_bytes)
    with apart.session.record() as recording:
        apart.step(*batch)
        rows = recording.read()
    kinds = rows["kind"]
    assert (kinds == UPLOAD).sum() == uploads and (kinds == DOWNLOAD).sum() == downloads
    assert (kinds == LAUNCH).sum() == apart.plan.graphs["train"].launches
    assert rows["bytes"][kinds == UPLOAD].sum() == up_bytes
    assert (rows["ended"] >= rows["started"]).all()
    apart.close()
