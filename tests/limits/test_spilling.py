"""Values and frozen parameters outside the device: the same bits, proved plans, clear errors."""

from __future__ import annotations

import random
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.device import DeviceCaps
from handheld.errors import OutOfMemory, PlanError, PlanFileError
from handheld.plan.file_write import parts_of
from handheld.plan.plan import Plan
from handheld.plan.transfers import BEGIN, END, moved_bytes, schedule
from handheld.plan.verify import verify

from .nets import attention, residual
from .test_random_graphs import RandomNet

Batch = Sequence[torch.Tensor]


def trained(plan: Plan, batch: Batch, steps: int = 3) -> tuple[list[float], dict[str, np.ndarray]]:
    with plan.start() as trainer:
        return [float(trainer.step(*batch)) for _ in range(steps)], trainer.state()


def assert_same(one: Plan, other: Plan, batch: Batch) -> None:
    (losses, state), (other_losses, other_state) = trained(one, batch), trained(other, batch)
    assert losses == other_losses
    different = [name for name, value in state.items() if not np.array_equal(other_state[name], value)]
    assert not different


def limit_of(plan: Plan, share: float) -> int:
    return plan.bytes - int(plan.arena_bytes * (1 - share))


@pytest.mark.parametrize("device", ["opencl", "reference:cpu"])
def test_moved_values_keep_the_bits(device: str, tmp_path: Path) -> None:
    step, batch = residual()
    whole = step.copy().plan(device)
    limit = limit_of(whole, 0.5)
    options: dict[str, Any] = {"memory_limit_bytes": limit, "spill": True, "recompute": False}
    plan = step.copy().plan(device, **options, spill_to=tmp_path)
    assert plan.bytes <= limit < whole.bytes and plan.host_bytes and not plan.options["fit"]
    out, into = moved_bytes(plan.graphs["train"].graph)
    assert out == into == plan.host_bytes
    assert_same(whole, plan, batch)
    text = " ".join(plan.explain().split())
    assert f"moved to a file in {tmp_path} and back" in text and "train moves:" in text
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_host_memory_on_a_device_with_its_own() -> None:
    step, batch = residual()
    whole = step.copy().plan("opencl")
    caps = replace(whole.caps, unified_memory=False)
    plan = step.copy().plan("opencl", caps=caps, memory_limit_bytes=limit_of(whole, 0.5), spill=True, recompute=False)
    assert "the memory of the host" in " ".join(plan.explain().split())
    assert_same(whole, plan, batch)


@pytest.mark.parametrize("seed", range(5))
def test_random_graphs_and_limits(seed: int) -> None:
    torch.manual_seed(seed)
    model, chance = RandomNet(seed), random.Random(seed)
    frozen = [f"layers.{i}" for i, kind in enumerate(model.kinds[:5]) if kind in ("linear", "cat")]
    handheld.freeze(model, *(frozen or ["head"]))
    batch = torch.randn(512, 24), torch.randint(0, 5, (512,))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch, evaluate=False)
    device = "reference:cpu"
    whole = step.copy().plan(device)
    limit = limit_of(whole, chance.uniform(0.4, 0.9))
    options = {
        "micro_batches": 1,
        "spill": True,
        "recompute": chance.random() < 0.5,
        "stream": bool(frozen) and chance.random() < 0.7,
    }
    try:
        plan = step.copy().plan(device, memory_limit_bytes=limit, **options)
    except OutOfMemory as error:
        assert error.smallest_bytes is not None and error.smallest_bytes > limit
        limit = error.smallest_bytes
        plan = step.copy().plan(device, memory_limit_bytes=limit, **options)
    assert plan.bytes <= limit
    verify(plan)
    assert step.copy().plan(device, memory_limit_bytes=limit, **options).options == plan.options
    assert_same(whole, plan, batch)


def test_frozen_parameters_are_streamed_with_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(6)), nn.Linear(96, 5))
    handheld.lora(model, rank=2)
    batch = torch.randn(8, 96), torch.randint(0, 5, (8,))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    step = handheld.capture(model, F.cross_entropy, optimizer, batch)
    for packed in (step, handheld.quantise(step, 8)):
        whole, plan = packed.copy().plan("opencl"), packed.copy().plan("opencl", stream=True)
        frozen = sum(place.nbytes for place in plan.host_state.values())
        assert frozen > 40_000 and sum(plan.segments[: plan.arena]) <= sum(whole.segments[: whole.arena]) - frozen
        if packed is step:
            assert plan.bytes < whole.bytes - frozen / 2  # Two weights are on the device at a time.
        assert_same(whole, plan, batch)
        with plan.start() as trainer, whole.start() as other:
            assert np.array_equal(trainer.predict(batch[0]), other.predict(batch[0]))
            name = next(iter(plan.host_state))
            value = trainer.session.read_slot(name)
            trainer.session.write_slot(name, value[::-1].copy())
            assert np.array_equal(trainer.session.read_slot(name), value[::-1])
            assert not np.array_equal(trainer.predict(batch[0]), other.predict(batch[0]))


def test_copies_run_beside_other_nodes_and_repeated_nodes_too() -> None:
    step, batch = residual()
    whole = step.copy().plan("opencl")
    plan = step.copy().plan("opencl", memory_limit_bytes=limit_of(whole, 0.7), spill=True, recompute=False)
    graph = plan.graphs["train"].graph
    kinds = [action.kind for action in schedule(graph)]
    assert kinds.count(BEGIN) == kinds.count(END)
    beside = [i for i, kind in enumerate(kinds[:-1]) if kind == BEGIN and kinds[i + 1] != END]
    assert beside, "some copy has work beside it"
    with plan.start() as trainer:
        before = trainer.counters
        loss = float(trainer.step(*batch))
        used = trainer.counters - before
        out, into = moved_bytes(graph)
        assert used.download_bytes == out + 4 and used.upload_bytes > into
        trainer.session.run_repeated("train", {0: 2})
        trainer.session.begin_nodes("train")
        for node in range(len(graph.nodes)):
            trainer.session.run_node("train", node)
        assert np.isfinite(loss) and all(np.isfinite(v).all() for v in trainer.state().values())
        with trainer.session.record() as recording:
            trainer.step(*batch)
            trainer.session.finish()
            moved = recording.read()
        assert len(moved) > len(graph.nodes)


def test_the_verifier_finds_memory_that_is_used_too_early() -> None:
    step, _ = residual()
    whole = step.copy().plan("reference:cpu")
    plan = step.copy().plan("reference:cpu", memory_limit_bytes=limit_of(whole, 0.5), spill=True, recompute=False)
    entry = plan.graphs["train"]
    first, second = sorted(entry.host)[:2]
    shared = {**entry.host, second: replace(entry.host[second], offset=entry.host[first].offset)}
    with pytest.raises(PlanError, match="in the host were overwritten"):
        verify(replace(plan, graphs={"train": replace(entry, host=shared)}))
    with pytest.raises(PlanError, match="outside the memory of the host"):
        verify(replace(plan, host_bytes=plan.host_bytes // 2))
    graph = entry.graph
    late = {v.tensor for node in graph.nodes for v in node.inputs if v.tensor in graph.host}
    back = next(n.outputs[0] for n in graph.nodes if n.inputs and n.inputs[0].tensor in late)
    other = next(t for t, p in entry.places.items() if p.segment >= plan.arena and t != back and p.nbytes >= 4096)
    places = {**entry.places, back: entry.places[other]}
    with pytest.raises(PlanError):
        verify(replace(plan, graphs={"train": replace(entry, places=places)}))


def test_bad_input(tmp_path: Path) -> None:
    step, _ = attention(1)
    whole = step.plan("opencl")
    with pytest.raises(
        OutOfMemory,
        match=r"The smallest limit that was found is .* values moved out of the device: .* most of which .* needs",
    ) as caught:
        step.plan("opencl", memory_limit_bytes=50_000, spill=True, micro_batches=1)
    assert caught.value.smallest_bytes and caught.value.smallest_bytes < whole.bytes
    with pytest.raises(PlanError, match="spill_to=3 must be the path of a folder"):
        step.plan("opencl", spill_to=3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="spill_to says where, but nothing leaves the device"):
        step.plan("opencl", spill_to=tmp_path)
    with pytest.raises(PlanError, match="is frozen, so there is nothing to stream"):
        step.plan("opencl", stream=True)
    caps = DeviceCaps.shipped("adreno-740")
    plan = step.plan("opencl", caps=caps, memory_limit_bytes=limit_of(whole, 0.7), spill=True, recompute=False)
    with pytest.raises(PlanFileError, match=r"cannot move values out of the device.* Try: without --spill"):
        parts_of(plan, values=False)
    file = tmp_path / "file"
    file.write_text("")
    plan = step.plan("opencl", memory_limit_bytes=limit_of(whole, 0.7), spill=True, recompute=False, spill_to=file)
    with pytest.raises(OutOfMemory, match=r"cannot be reserved there: .*Try: --spill-to FOLDER"):
        plan.start()


def test_a_full_disk_is_an_error_before_training_and_the_step_file_stays(tmp_path: Path) -> None:
    """The limit on file sizes stands for a full disk: the space is reserved before the first step."""
    step, _ = residual(2)
    whole = step.plan("opencl")
    plan = step.plan(
        "opencl", memory_limit_bytes=limit_of(whole, 0.7), spill=True, recompute=False, spill_to=tmp_path / "spill"
    )
    kept = step.save(tmp_path / "kept.step").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, before[1]))
    try:
        with pytest.raises(OutOfMemory, match=r"there: File too large.* checkpoints are as they were"):
            plan.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "spill").iterdir())
    assert (tmp_path / "kept.step").read_bytes() == kept
