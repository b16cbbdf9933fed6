"""The table of costs per device and batch, and what is chosen from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.device import DeviceCaps
from handheld.errors import HandheldError
from handheld.limits.means import Allowed
from handheld.placement.choice import best, best_at, check_goal, ranges
from handheld.placement.table import Candidate, CostTable, Entry, cost_table
from handheld.profile import energy_models
from helpers.energy import flat_model

PHONES = ("adreno-740", "mali-g78")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HANDHELD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def step():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(4, 64), torch.zeros(4, dtype=torch.int64)
    return handheld.capture(model, F.cross_entropy, optimizer, batch)


def phones(*changed: DeviceCaps) -> list[Candidate]:
    by_name = {caps.name: caps for caps in changed}
    shipped = [(name, DeviceCaps.shipped(name)) for name in PHONES]
    return [Candidate(name, by_name.get(caps.name, caps), name) for name, caps in shipped]


def faster(table: CostTable, device: str, times: dict[int, float]) -> CostTable:
    """The table with other times of a device at some batches, known without an error."""

    def change(entry: Entry) -> Entry:
        if entry.device != device or entry.batch not in times or entry.cost is None:
            return entry
        seconds = times[entry.batch]
        return replace(entry, cost=replace(entry.cost, seconds=seconds, low_s=seconds, high_s=seconds))

    return replace(table, entries=tuple(change(entry) for entry in table.entries))


def test_every_device_has_a_row_per_batch(step):
    table = cost_table("net", step, phones(), [1, 4, 16])
    assert [(e.device, e.batch) for e in table.entries] == [(d, b) for d in PHONES for b in (1, 4, 16)]
    for entry in table.entries:
        assert entry.cost is not None and entry.cost.low_s < entry.cost.seconds < entry.cost.high_s
        assert entry.cost.bytes == step.plan("opencl", caps=DeviceCaps.shipped(entry.device)).bytes or entry.batch != 4
        assert entry.joules_per_sample is None and entry.bound in ("host", "launches", "memory", "compute", "transfers")
    assert all("doctor --energy" in known.no_joules for known in table.known)


def test_what_does_not_fit_has_no_cost_and_is_not_chosen(step):
    small = replace(DeviceCaps.shipped("adreno-740"), global_mem_bytes=1 << 20)
    table = cost_table("net", step, phones(small), [1, 1024])
    entry = table.of("adreno-740")[-1]
    assert entry.cost is None and entry.why.startswith("does not fit: the plan needs")
    assert best(table, "time", 1024).device == "mali-g78"


def test_a_memory_limit_is_met_as_a_training_meets_it(step):
    """The batch of 1,024 does not fit as it is; a training runs it in micro-batches."""
    whole = cost_table("net", step, phones()[:1], [1024]).entries[0]
    assert whole.cost is not None
    limit = whole.cost.bytes // 2
    fitted = cost_table("net", step, phones()[:1], [1024], memory_limit_bytes=limit).entries[0]
    assert fitted.cost is not None and fitted.cost.bytes <= limit and fitted.cost.seconds > whole.cost.seconds
    kept = cost_table("net", step, phones()[:1], [1024], memory_limit_bytes=limit, allowed=Allowed(recompute=False))
    assert kept.entries[0].cost is None and "does not fit" in kept.entries[0].why


def test_the_crossover_is_where_another_device_becomes_better(step):
    table = cost_table("net", step, phones(), [1, 2, 4])
    table = faster(table, "adreno-740", {1: 1.0, 2: 2.0, 4: 3.0})
    table = faster(table, "mali-g78", {1: 3.0, 2: 2.5, 4: 2.0})
    found = ranges(table, "time")
    assert [(r.device, r.first, r.last, r.sure) for r in found] == [
        ("adreno-740", 1, 2, (1, 2)),
        ("mali-g78", 4, 4, (4,)),
    ]
    assert "mali-g78 needs 3 times the time per sample" in found[0].reason
    choice = best(table, "time")
    assert (choice.device, choice.batch, choice.value, choice.sure) == ("mali-g78", 4, 0.5, True)
    assert best(table, "memory").batch == 1


def test_a_choice_within_the_error_is_not_sure(step):
    table = cost_table("net", step, phones(), [4])
    choice = best_at(table, 4, "time")
    assert choice is not None and not choice.sure and choice.close == tuple(d for d in PHONES if d != choice.device)


def test_of_equal_batches_the_smallest_is_taken(step):
    table = cost_table("net", step, phones()[:1], [2, 4])
    table = faster(table, "adreno-740", {2: 1.01, 4: 2.0})
    assert best(table, "time").batch == 2
    assert best(faster(table, "adreno-740", {2: 1.1}), "time").batch == 4


def test_energy_needs_the_model_of_every_device(step):
    table = cost_table("net", step, phones(), [1, 4])
    with pytest.raises(HandheldError, match=r"adreno-740: .* was not measured.*mali-g78"):
        best(table, "energy")
    for name, watts in zip(PHONES, (8.0, 1.0), strict=True):
        caps = DeviceCaps.shipped(name)
        energy_models.store(flat_model(step.plan("opencl", caps=caps), watts), caps)
    table = cost_table("net", step, phones(), [1, 4])
    for entry in table.entries:
        assert entry.joules_per_sample is not None and entry.cost is not None
        watts = 8.0 if entry.device == "adreno-740" else 1.0
        assert entry.joules_per_sample == pytest.approx(watts * entry.cost.seconds / entry.batch, rel=0.3)
    choice = best(table, "energy")
    assert choice.device == "mali-g78" and choice.batch == 4 and "joules per sample" in choice.reason


def test_goals_are_checked():
    with pytest.raises(HandheldError, match=r"--for speed is no goal\. Try: --for time"):
        check_goal("speed")
