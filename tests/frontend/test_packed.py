"""Packed sequences: lengths that change with every step, what may be done with packed data, and clear errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpad_sequence

from handheld import capture, load
from handheld.errors import BatchError, CaptureError
from handheld.step import Step
from helpers.equality import compare


class Tagger(nn.Module):
    """Reads padded sequences in both directions and scores them by the final states."""

    def __init__(self, cell: type[nn.RNNBase] = nn.GRU) -> None:
        super().__init__()
        self.layer = cell(3, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(20, 4)

    def forward(self, x: torch.Tensor, lengths: Any) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        rows, last = self.layer(packed)
        rows, _ = pad_packed_sequence(rows, batch_first=True, total_length=x.size(1))
        final = last[0] if isinstance(last, tuple) else last
        scores: torch.Tensor = self.head(torch.cat([final[-2], final[-1], rows.sum(1)], 1))
        return scores


def batch_of(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (4,), generator=random)
    return torch.randn(4, 7, 3, generator=random), lengths, torch.randint(4, (4,), generator=random)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step_of(model: nn.Module, fn: Any, batch: Any, **options: Any) -> Step:
    return capture(fn, optimizer=sgd(model), batch=batch, modules=model, evaluate=False, **options)


@pytest.mark.parametrize("device", ["reference:cpu", "opencl"])
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_training_equals_pytorch_with_other_lengths_in_every_step(cell: type[nn.RNNBase], device: str) -> None:
    torch.manual_seed(0)
    model, batches = Tagger(cell), [batch_of(seed) for seed in range(4)]
    assert len({tuple(b[1].tolist()) for b in batches}) == 4
    step = capture(model, F.cross_entropy, sgd(model), batches[0], inputs=2, evaluate=False, frozen="error")
    with step.plan(device).start() as trainer:
        rows = compare(model, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), sgd, trainer, batches)
    bad = [r for r in rows if r[1] > 4 * r[2] + 1e-6]
    assert not bad, bad[:5]
    nodes = [n.op for n in step.graphs["train"].nodes]
    name = cell.__name__.lower()
    assert nodes.count(name) == nodes.count(f"{name}_grad") == 4  # Two layers, two directions; nothing is unrolled.


def test_lengths_outside_the_padded_sequences_are_refused() -> None:
    model, batch = Tagger(), batch_of(0)
    step = capture(model, F.cross_entropy, sgd(model), batch, inputs=2, evaluate=False)
    assert step.graphs["train"].notes["ranges"][0] == ("1", 1, 8, None)
    with step.plan("reference:cpu").start() as trainer:
        for wrong in (0, 8):
            with pytest.raises(BatchError, match="from 1 to 7"):
                trainer.step(batch[0], torch.tensor([1, 2, wrong, 3]), batch[2])


def test_lengths_from_a_list_are_reported_as_frozen() -> None:
    model, (x, lengths, y) = Tagger(), batch_of(0)
    values = lengths.tolist()
    step = step_of(model, lambda b: F.cross_entropy(model(b[0], values), b[1]), (x, y), frozen="accept")
    (text,) = step.frozen()
    assert "test_packed.py" in text and f"the lengths {values}" in text and "a tensor of the batch may change" in text


def test_tolist_is_a_read_and_cpu_is_not() -> None:
    model, batch = Tagger(), batch_of(0)
    step_of(model, lambda b: F.cross_entropy(model(b[0], b[1].cpu()), b[2]), batch, frozen="error")
    read = step_of(model, lambda b: F.cross_entropy(model(b[0], b[1].tolist()), b[2]), batch, frozen="accept")
    assert any("tolist() of shape [4], from input 1" in text for text in read.frozen())


def test_sequences_of_fixed_sizes_are_not_frozen() -> None:
    layer = nn.GRU(3, 5)

    def loss(batch: Any) -> torch.Tensor:
        return layer(pack_sequence(batch, enforce_sorted=False))[1].sum()

    step_of(layer, loss, [torch.randn(n, 3) for n in (2, 5, 4)], frozen="error")


def _padded(length: int, **options: Any) -> list[str]:
    """The warnings of a capture whose longest sequence has this length, of seven padded steps."""
    layer = nn.GRU(3, 5, batch_first=True)

    def loss(batch: Any) -> torch.Tensor:
        packed = pack_padded_sequence(batch[0], batch[1], batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(layer(packed)[0], batch_first=True, **options)[0].mean()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        step_of(layer, loss, (torch.randn(2, 7, 3), torch.tensor([2, length])))
    return [f"{w.filename} {w.message}" for w in seen if "pad_packed_sequence" in str(w.message)]


def test_other_rows_than_in_pytorch_are_reported() -> None:
    (text,) = _padded(5)
    assert "test_packed.py" in text and "returns 7 rows" in text and "PyTorch returns 5 rows" in text and "Try:" in text
    assert not _padded(7)
    assert not _padded(5, total_length=7)


@pytest.mark.parametrize(
    ("what", "use"),
    [
        ("its number of rows", lambda rows: rows.size(0)),
        ("shape", lambda rows: rows.shape[0]),
        ("cumsum", lambda rows: torch.cumsum(rows, 0)),
        ("batch_norm", lambda rows: F.batch_norm(rows, None, None, training=True)),
        ("softmax along the rows", lambda rows: F.softmax(rows, dim=0)),
        ("add with a tensor of rows", lambda rows: rows + torch.ones(1, 5)),
        ("mse_loss of rows and other tensors", lambda rows: F.mse_loss(rows, torch.ones(9, 5))),
    ],
)
def test_packed_data_that_would_mix_padding_in_is_refused(what: str, use: Any) -> None:
    layer = nn.GRU(3, 5)

    def loss(batch: Any) -> Any:
        return use(layer(pack_padded_sequence(*batch, enforce_sorted=False))[0].data)

    with pytest.raises(CaptureError, match=f"test_packed.py.*{what} cannot be recorded.*Try: pad_packed_sequence"):
        step_of(layer, loss, (torch.randn(7, 3, 3), torch.tensor([2, 7, 5])))


def test_two_packings_with_different_lengths_do_not_mix() -> None:
    layer = nn.GRU(3, 5)

    def loss(batch: Any) -> torch.Tensor:
        rows = layer(pack_padded_sequence(batch[0], batch[1], enforce_sorted=False))[0].data
        return F.mse_loss(rows, pack_padded_sequence(batch[2], batch[3], enforce_sorted=False).data)

    lengths = torch.tensor([2, 7, 5])
    with pytest.raises(CaptureError, match="two packed sequences with different lengths"):
        step_of(layer, loss, (torch.randn(7, 3, 3), lengths, torch.randn(7, 3, 5), lengths + 0))


def test_batch_sizes_are_not_known() -> None:
    layer = nn.GRU(3, 5)

    def loss(batch: Any) -> torch.Tensor:
        packed = pack_padded_sequence(*batch, enforce_sorted=False)
        return layer(packed)[1].sum() / packed.batch_sizes.sum()

    with pytest.raises(CaptureError, match=r"test_packed.py.*batch_sizes.sum.*Try: compute with the lengths"):
        step_of(layer, loss, (torch.randn(7, 3, 3), torch.tensor([2, 7, 5])))


def test_lengths_of_another_shape_are_refused() -> None:
    model, batch = Tagger(), (torch.randn(4, 7, 3), torch.ones(7, dtype=torch.long))
    with pytest.raises(CaptureError, match=r"test_packed.py.*order of 7 values .* dimension of size 4. Try:"):
        step_of(model, lambda b: model(*b).sum(), batch)
    with pytest.raises(CaptureError, match=r"test_packed.py.*lengths of shape \[7\] for 4 sequences. Try:"):
        step_of(model, lambda b: pack_padded_sequence(*b, batch_first=True)[0].sum(), batch)


def test_a_packed_sequence_cannot_be_a_batch() -> None:
    layer = nn.GRU(3, 5)
    packed = pack_padded_sequence(torch.randn(7, 3, 3), torch.tensor([7, 5, 2]))
    with pytest.raises(CaptureError, match=r"has a PackedSequence.*Try: padded sequences and a tensor of lengths"):
        step_of(layer, lambda b: layer(b[0])[1].sum(), (packed, torch.ones(3)))
    with pytest.raises(CaptureError, match=r"a recurrent layer got a PackedSequence.*Try:"):
        step_of(layer, lambda b: layer(packed)[1].sum() + b[0].sum(), (torch.ones(3),))


def test_a_packed_output_is_kept_with_its_padding() -> None:
    layer, lengths = nn.GRU(3, 5), torch.tensor([2, 7, 5])
    x = torch.randn(7, 3, 3)

    def loss(batch: Any) -> Any:
        rows, last = layer(pack_padded_sequence(*batch, enforce_sorted=False))
        return last.sum(), rows

    step = capture(loss, optimizer=sgd(layer), batch=(x, lengths), modules=layer, evaluate=False)
    want = pad_packed_sequence(layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0])[0]
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(x, lengths)
        torch.testing.assert_close(torch.from_numpy(trainer.outputs()["output"]), want)


def test_unpadding_is_reported_as_frozen() -> None:
    layer = nn.Linear(3, 1)

    def loss(batch: Any) -> torch.Tensor:
        return torch.stack([layer(rows).mean() for rows in unpad_sequence(*batch, batch_first=True)]).sum()

    step = step_of(layer, loss, (torch.randn(2, 4, 3), torch.tensor([4, 2])), frozen="accept")
    assert step.frozen()


def test_any_number_of_sequences_is_evaluated_and_a_step_file_keeps_the_lengths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tagger(nn.LSTM)
    x, lengths = torch.randn(10, 7, 3), torch.tensor([7, 1, 4, 2, 6, 3, 5, 7, 1, 2])
    labels = torch.randint(4, (10,))
    step = capture(model, F.cross_entropy, sgd(model), (x[:4], lengths[:4], labels[:4]), inputs=2)
    with torch.no_grad():
        want = model(x, lengths)
    with step.plan("reference:cpu").start() as trainer:
        loss, outputs = trainer.evaluate(x, lengths, labels)
        assert float(loss) == pytest.approx(float(F.cross_entropy(want, labels)), rel=1e-5)
        torch.testing.assert_close(torch.from_numpy(outputs["output"]), want)
    step.save(tmp_path / "tagger.step")
    with load(tmp_path / "tagger.step").plan("opencl").start() as trainer:
        torch.testing.assert_close(torch.from_numpy(trainer.predict(x, lengths)), want, rtol=1e-4, atol=1e-5)
        with pytest.raises(BatchError, match="from 1 to 7"):
            trainer.predict(x[:4], lengths[:4] + 1)
