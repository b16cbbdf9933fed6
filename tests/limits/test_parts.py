"""Micro-batches: the update of the whole batch, also with a smaller last part; what cannot be divided is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.device import DeviceCaps
from handheld.errors import HandheldError, OutOfMemory, PlanError
from handheld.plan.fit import fits_of
from handheld.run.parts import parts_of

CAPS = DeviceCaps.shipped("adreno-740")


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    more = [nn.BatchNorm2d(8)] if norm else []
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *more, nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(512, 5)
    )


def captured(loss=F.cross_entropy, norm: bool = False, **options) -> tuple[handheld.Step, tuple[torch.Tensor, ...]]:
    model = net(norm)
    batch = torch.randn(12, 3, 8, 8), torch.randint(0, 5, (12,))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    return handheld.capture(model, loss, optimizer, batch, **options), batch


def trained(plan, batches) -> tuple[list[float], dict[str, np.ndarray]]:
    with plan.start() as trainer:
        return [float(trainer.step(*batch)) for batch in batches], trainer.state()


def same(step: handheld.Step, batches, count: int) -> None:
    names = [name for name in step.state() if not name.startswith("handheld.")]
    losses, state = trained(step.copy().plan("opencl"), batches)
    divided, other = trained(step.copy().plan("opencl", micro_batches=count), batches)
    assert divided == pytest.approx(losses, rel=1e-5)
    for name in names:
        np.testing.assert_allclose(other[name], state[name], rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("count", [2, 5])
def test_the_update_is_that_of_the_whole_batch(count: int) -> None:
    """With 5 micro-batches of 12 samples, each has 3 and there are 4; a batch of 7 ends with a part of 1."""
    step, (x, y) = captured(clip_norm=1.0)
    same(step, [(x, y), (x[:7], y[:7]), (x.flip(0), y.flip(0))], count)


def test_a_loss_that_is_a_sum_stays_a_sum() -> None:
    step, batch = captured(lambda out, y: F.cross_entropy(out, y, reduction="sum"))
    same(step, [batch, batch], 3)


def test_labels_that_the_loss_ignores_do_not_count() -> None:
    step, (x, y) = captured()
    y = y.clone()
    y[:5] = -100  # The first part of 4 has no label at all.
    same(step, [(x, y), (x, y)], 3)


def test_a_loss_over_pairs_of_samples_is_refused() -> None:
    step, _ = captured(lambda out, y: (out @ out.T).square().mean())
    with pytest.raises(PlanError, match="neither a mean nor a sum over samples"):
        step.plan("opencl", caps=CAPS, micro_batches=2)


def test_batch_norm_is_divided_only_if_asked() -> None:
    step, _ = captured(norm=True, evaluate=False)
    limit = step.plan("opencl", caps=CAPS).bytes // 3
    with pytest.raises(OutOfMemory, match="1 batch norm would see fewer samples"):
        step.plan("opencl", caps=CAPS, memory_limit_bytes=limit, micro_batches=None)
    with pytest.warns(UserWarning, match="1 batch norm sees 4 samples instead of 12"):
        plan = step.plan("opencl", caps=CAPS, micro_batches=3)
    assert "3 micro-batches of 4 samples" in plan.explain()


def test_a_limit_that_recomputation_does_not_meet_is_met_with_micro_batches() -> None:
    step, batch = captured(evaluate=False)
    with pytest.raises(OutOfMemory) as stopped:
        step.copy().plan("opencl", memory_limit_bytes=100 << 10, micro_batches=1)
    limit = (stopped.value.smallest_bytes or 0) - 1
    slots = set(step.slots)
    with pytest.raises(OutOfMemory):
        step.plan("opencl", memory_limit_bytes=limit, micro_batches=1)
    assert set(step.slots) == slots, "a plan that was not made leaves nothing behind"
    plan = step.plan("opencl", memory_limit_bytes=limit)
    parts = parts_of(plan)
    assert parts is not None and plan.bytes <= limit and plan.options["parts"]["more"] > -0.5
    with plan.start() as trainer:
        assert trainer.session.allocated_bytes == plan.bytes
        trainer.step(*batch)
        with pytest.raises(HandheldError, match="no outputs of the whole batch"):
            trainer.outputs()


def test_fit_trains_the_last_smaller_batch() -> None:
    step, (x, y) = captured()
    data = [(x, y), (x[:5], y[:5])]
    histories = []
    for options in ({}, {"micro_batches": 3}):
        with step.copy().plan("opencl", **options).start() as trainer:
            histories.append(trainer.fit(data, epochs=2, test=data))
    one, other = histories
    assert [e.samples for e in other.epochs] == [17, 17]
    assert [e.loss for e in other.epochs] == pytest.approx([e.loss for e in one.epochs], rel=1e-4)


def test_a_step_file_cannot_be_divided(tmp_path) -> None:
    step, _ = captured(evaluate=False)
    loaded = handheld.load(step.save(tmp_path / "a.step"))
    with pytest.raises(PlanError, match="a step file cannot be divided"):
        loaded.plan("opencl", caps=CAPS, micro_batches=2)


def test_micro_batches_compute_values_again_if_they_must() -> None:
    step, batch = captured(evaluate=False)
    least = step.copy().plan("opencl", micro_batches=3).bytes
    limit = least - (8 << 10)
    plan = step.copy().plan("opencl", memory_limit_bytes=limit, micro_batches=3)
    assert plan.bytes <= limit and parts_of(plan) and plan.options["fit"]
    losses, state = trained(step.copy().plan("opencl", micro_batches=3), [batch, batch])
    limited, other = trained(plan, [batch, batch])
    assert limited == losses
    assert all(np.array_equal(other[name], value) for name, value in state.items()), "the same bits"


def test_the_error_names_the_smallest_limit_of_all_means() -> None:
    step, _ = captured(evaluate=False)
    options = {"caps": CAPS, "memory_limit_bytes": 60 << 10}
    with pytest.raises(OutOfMemory) as stopped:
        step.copy().plan("opencl", micro_batches=1, **options)
    whole = stopped.value.smallest_bytes or 0
    with pytest.raises(OutOfMemory, match=r"found is .*, in \d+ micro-batches of \d samples?: .* needs at") as stopped:
        step.copy().plan("opencl", micro_batches=None, **options)
    least = stopped.value.smallest_bytes or 0
    assert 60 << 10 < least < whole
    plan = step.copy().plan("opencl", caps=CAPS, micro_batches=None, memory_limit_bytes=least)
    assert plan.bytes <= least and parts_of(plan)


def test_micro_batches_do_only_what_is_allowed() -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.GELU())]
    model, batch = nn.Sequential(*layers), (torch.randn(192, 16), torch.randint(0, 16, (192,)))
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), batch, evaluate=False)
    plain = step.copy().plan("opencl", micro_batches=3)
    limit = plain.bytes - plain.arena_bytes // 2
    with pytest.raises(OutOfMemory, match="but only"):
        step.copy().plan("opencl", micro_batches=3, memory_limit_bytes=limit, recompute=False)
    plan = step.copy().plan("opencl", micro_batches=3, memory_limit_bytes=limit, recompute=False, spill=True)
    assert plan.bytes <= limit and parts_of(plan) and plan.host_bytes
    assert not any(fit.repeats for fit in fits_of(plan.options).values())
    assert "moved to a file" in " ".join(plan.explain().split())
    losses, state = trained(plain, [batch, batch])
    moved, other = trained(plan, [batch, batch])
    assert moved == losses
    assert all(np.array_equal(other[name], value) for name, value in state.items()), "the same bits"


def test_micro_batches_and_optimizer_state_in_few_bits() -> None:
    step, (x, y) = captured(evaluate=False)
    whole, divided = (step.copy().plan("opencl", state_bits=8, micro_batches=n) for n in (1, 3))
    assert "optimizer state in 8 bits" in divided.explain() and parts_of(divided)
    losses, _ = trained(whole, [(x, y)] * 3)
    assert trained(divided, [(x, y)] * 3)[0] == pytest.approx(losses, rel=1e-4)
