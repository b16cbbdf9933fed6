"""The CTC loss: training with lengths that change with every step, frozen lengths, and clear errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from handheld import capture
from handheld.errors import BatchError, CaptureError
from handheld.step import Step
from helpers.equality import compare


class Speech(nn.Module):
    """A small recogniser: convolution over frames, a recurrent layer over packed frames, scores of the letters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 8, 3, stride=2, padding=1)
        self.gru = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        frames = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        packed = pack_padded_sequence(frames, (lengths + 1) // 2, batch_first=True, enforce_sorted=False)
        rows, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=frames.size(1))
        scores: torch.Tensor = self.head(rows).log_softmax(2)
        return scores.transpose(0, 1)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    x, lengths, targets, target_lengths = batch
    return nn.CTCLoss(zero_infinity=True)(model(x, lengths), targets, (lengths + 1) // 2, target_lengths)


def batch_of(seed: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(14, 26, (4,), generator=random)
    labels = torch.randint(1, 5, (4,), generator=random)
    targets = torch.randint(1, 7, (4, 5), generator=random)
    return torch.randn(4, 25, 5, generator=random), lengths, targets, labels


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("device", ["reference:cpu", "opencl"])
def test_training_equals_pytorch_with_other_lengths_in_every_step(device: str) -> None:
    torch.manual_seed(0)
    model, batches = Speech(), [batch_of(seed) for seed in range(4)]
    step = capture(
        lambda b: loss_of(model, b),
        optimizer=sgd(model),
        batch=batches[0],
        modules=model,
        evaluate=False,
        frozen="error",
    )
    with step.plan(device).start() as trainer:
        rows = compare(model, loss_of, sgd, trainer, batches)
    bad = [r for r in rows if r[1] > 4 * r[2] + 1e-6]
    assert not bad, bad[:5]
    nodes = [n.op for n in step.graphs["train"].nodes]
    assert nodes.count("ctc") == nodes.count("ctc_grad") == 1


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(x).log_softmax(2)
        return scores


def recorded(fn: Any, *batch: torch.Tensor, **options: Any) -> Step:
    model = Scores()
    given = (torch.randn(9, 2, 3), *batch)
    return capture(
        lambda b: fn(model(b[0]), *b[1:]), optimizer=sgd(model), batch=given, modules=model, evaluate=False, **options
    )


TARGETS, INPUTS, LABELS = torch.tensor([[1, 2, 2], [3, 0, 0]]), torch.tensor([9, 7]), torch.tensor([3, 1])


@pytest.mark.parametrize("lengths", [([9, 7], [3, 1]), ((9, 7), (3, 1))])
def test_lengths_from_lists_are_reported_as_frozen(lengths: Any) -> None:
    step = recorded(lambda x, y: F.ctc_loss(x, y, *lengths), TARGETS, frozen="accept")
    first, second = step.frozen()
    assert "test_ctc.py" in first and "the input lengths [9, 7]" in first
    assert "the target lengths [3, 1]" in second and "a tensor of the batch may change" in second


def test_lengths_that_the_code_computes_are_not_frozen() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x, y, torch.full((2,), x.size(0)), labels)

    step = recorded(loss, TARGETS, LABELS, frozen="error")
    assert step.graphs["train"].notes["ranges"] == (("2", 0, 4, None),)


def test_lengths_are_checked_in_every_batch() -> None:
    step = recorded(F.ctc_loss, TARGETS, INPUTS, LABELS)
    x = torch.randn(9, 2, 3)
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(x, TARGETS, INPUTS, LABELS)
        for inputs, labels in ((INPUTS + 1, LABELS), (INPUTS, LABELS + 1), (INPUTS, LABELS - 2)):
            with pytest.raises(BatchError, match="must be from 0 to"):
                trainer.step(x, TARGETS, inputs, labels)


@pytest.mark.parametrize("device", ["reference:cpu", "opencl"])
def test_joined_targets_may_have_other_lengths_in_every_step(device: str) -> None:
    model, joined = Scores(), torch.tensor([1, 2, 2, 3])
    x = torch.randn(9, 2, 3)

    def loss(batch: Any) -> torch.Tensor:
        return F.ctc_loss(model(batch[0]), batch[1], batch[2], batch[3])

    step = capture(loss, optimizer=sgd(model), batch=(x, joined, INPUTS, LABELS), modules=model, evaluate=False)
    with step.plan(device).start() as trainer:
        for labels in ([3, 1], [1, 3], [0, 4]):
            state = {k: torch.from_numpy(np.array(v)) for k, v in trainer.state().items()}
            model.load_state_dict(state, strict=False)
            batch = (x, joined, INPUTS, torch.tensor(labels))
            want = float(loss(batch).detach())
            assert float(trainer.step(*batch)) == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        (r"input_lengths of shape \[3\] for 2 samples", lambda x: F.ctc_loss(x, TARGETS, [9, 9, 9], LABELS)),
        (r"targets of shape \[1, 3\] for 2 samples", lambda x: F.ctc_loss(x, TARGETS[:1], INPUTS, LABELS)),
        ("blank=5 is not one of 5 classes", lambda x: F.ctc_loss(x, TARGETS, INPUTS, LABELS, blank=5)),
        (r"log_probs of shape \[90\]", lambda x: F.ctc_loss(x.flatten(), TARGETS, INPUTS, LABELS)),
    ],
)
def test_wrong_shapes_are_explained(match: str, call: Any) -> None:
    with pytest.raises(CaptureError, match=f"test_ctc.py.*{match}.*Try: "):
        recorded(call)
