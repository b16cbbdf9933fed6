"""The largest batch that fits: the search itself, and what an out-of-memory error says."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld import package
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory
from handheld.run import fitting
from handheld.run.fitting import MOST, Probe, largest
from handheld.units import size


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch):
    """A busy machine must not cut the search short."""
    monkeypatch.setattr(fitting, "SECONDS", 300.0)


CAPS = DeviceCaps.shipped("adreno-740")


def prober(available, nbytes):
    """A probe that counts its calls."""
    calls: list[int] = []

    def probe(batch: int) -> Probe:
        calls.append(batch)
        return Probe(batch, nbytes(batch), nbytes(batch) <= available)

    return probe, calls


@pytest.mark.parametrize("available", [1000, 1001, 12_345, 999_999])
@pytest.mark.parametrize(
    "nbytes",
    [lambda b: 500 + 7 * b, lambda b: 500 + 256 * -(-b // 16), lambda b: 500 + b + b * b // 50],
    ids=["line", "stairs", "curve"],
)
def test_the_search_finds_the_largest(available, nbytes):
    most = next(b for b in itertools.count(1) if nbytes(b + 1) > available) if nbytes(1) <= available else 0
    for first in (1, 8, 4 * most + 1):
        probe, calls = prober(available, nbytes)
        found = largest(probe, [probe(first)], available, 1e9)
        assert (found.batch, found.exact, found.monotone) == (most, True, True)
        assert len(calls) <= 30 and len(set(calls)) == len(calls)


def test_the_search_starts_from_a_batch_of_none():
    probe, calls = prober(1000, lambda b: 500 + 7 * b)
    found = largest(probe, [Probe(0, 500, True), Probe(4096, 500 + 7 * 4096, False)], 1000, 1e9)
    assert found.batch == 71 and calls == [71, 72]


def test_the_search_ends_in_time_and_at_the_largest_batch():
    probe, calls = prober(10**9, lambda b: 500 + 7 * b)
    times = itertools.count()
    found = largest(probe, [probe(8)], 10**9, 2, clock=lambda: next(times))
    assert not found.exact and found.batch == calls[-1] and len(calls) == 2
    endless, _ = prober(10, lambda b: 1)
    assert largest(endless, [endless(8)], 10, 1e9).batch == MOST


def test_a_need_that_does_not_grow_is_seen():
    probe, _ = prober(1000, lambda b: 600 if b == 10 else 100 * b)
    assert not largest(probe, [probe(8), probe(10)], 1000, 1e9).monotone


def captured(batch: int) -> handheld.Step:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
    example = torch.randn(batch, 100), torch.zeros(batch, dtype=torch.int64)
    return handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), example)


def test_out_of_memory_names_the_largest_batch():
    step = captured(256)
    limit = captured(50).plan("opencl", caps=CAPS, recompute=False).bytes
    with pytest.raises(OutOfMemory, match=r"Largest tensors.*largest batch that fits is 50\. Try: a batch of 50$") as e:
        step.plan("opencl", caps=CAPS, memory_limit_bytes=limit, recompute=False)
    assert e.value.largest_batch == 50
    assert (
        e.value.needed_bytes == step.plan("opencl", caps=CAPS, recompute=False).bytes
        and e.value.available_bytes == limit
    )
    captured(50).plan("opencl", caps=CAPS, memory_limit_bytes=limit, recompute=False)
    with pytest.raises(OutOfMemory):
        captured(51).plan("opencl", caps=CAPS, memory_limit_bytes=limit, recompute=False)
    assert not step.added and list(step.graphs) == ["train", "evaluate", "predict"], "the step is as it was"


def test_out_of_memory_without_a_batch_that_fits():
    with pytest.raises(OutOfMemory, match=r"No batch fits: the state alone .* has 86\.8 KiB\. Try: ") as e:
        captured(8).plan("opencl", caps=CAPS, memory_limit_bytes=50_000, recompute=False)
    assert e.value.largest_batch is None and "0.0 MiB" not in str(e.value)
    with pytest.raises(OutOfMemory, match=r"No batch fits\. Try: precision='half', or a smaller model"):
        captured(8).plan("opencl", caps=CAPS, memory_limit_bytes=90_000, recompute=False)


def test_a_tensor_too_large_for_one_allocation_names_the_largest_batch():
    import dataclasses

    caps = dataclasses.replace(CAPS, max_alloc_bytes=100_000)
    with pytest.raises(OutOfMemory, match=r"in one piece.* at most 97\.7 KiB.*largest batch that fits is 125\. Try: "):
        captured(256).plan("opencl", caps=caps)


def test_a_step_file_names_its_own_batches(tmp_path):
    model = nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    builder = handheld.Capture(model)
    for batch in (4, 16, 64):
        example = torch.randn(batch, 100), torch.randn(batch, 100)
        builder.train(lambda b: F.mse_loss(model(b[0]), b[1]), optimizer, example, f"train@{batch}")
    step = package.load(builder.step().save(tmp_path / "some.step"))
    limit = step.plan("opencl", caps=CAPS, graphs=["train@16"], recompute=False).bytes
    with pytest.raises(OutOfMemory, match=r"Of its other batches, 4, 16 fit\. Try: a batch of 16$") as e:
        step.plan("opencl", caps=CAPS, graphs=["train@64"], memory_limit_bytes=limit, recompute=False)
    assert e.value.largest_batch == 16
    with pytest.raises(OutOfMemory, match=r"it has no smaller batch\. Try: handheld package --batch N"):
        step.plan("opencl", caps=CAPS, graphs=["train@4"], memory_limit_bytes=1000, recompute=False)
    with pytest.raises(OutOfMemory, match=r"none of its other batches fits \(4\)\. Try: "):
        step.plan("opencl", caps=CAPS, graphs=["train@16"], memory_limit_bytes=1000, recompute=False)


def test_several_updates_and_warnings_of_the_model_only_once():
    """A GAN has two graphs, and a model that warns does not warn again for each batch that is tried."""
    from handheld import suite

    step = suite.get("dcgan", size="small").step(32)
    half = step.plan("opencl", caps=CAPS, recompute=False).bytes // 2
    with warnings.catch_warnings(), pytest.raises(OutOfMemory) as e:
        warnings.simplefilter("error")
        step.plan("opencl", caps=CAPS, memory_limit_bytes=half, recompute=False)
    assert 1 < (e.value.largest_batch or 0) < 32


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5 << 20, "5.0 MiB"), (3 << 40, "3,072.0 GiB")],
)
def test_units_fit_the_number(nbytes, text):
    assert size(nbytes) == text
