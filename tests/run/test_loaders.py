"""`fit` reads a DataLoader as a loop in PyTorch does: one `iter` per epoch, so that random orders are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import handheld
from handheld.data.batches import IterableData
from handheld.errors import DataError
from helpers.sizes import samples


class Counted(DataLoader):
    """Counts how often it is read."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


def loader(count: int, seed: int) -> Counted:
    rows = TensorDataset(*map(torch.from_numpy, samples(count)))
    return Counted(rows, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed))


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


@pytest.mark.parametrize("tested", [False, True])
def test_a_shuffled_loader_gives_the_weights_of_the_plain_loop_with_one_iter_per_epoch(tested):
    plain, optimizer = parts()
    data, test = loader(44, 5), loader(20, 7)
    for _ in range(3):
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(plain(x), y).backward()
            optimizer.step()
    model, optimizer = parts()
    example = tuple(torch.from_numpy(a) for a in samples(8))
    step = handheld.capture(model, F.cross_entropy, optimizer, example)
    data = loader(44, 5)
    with step.plan("reference").start() as trainer:
        history = trainer.fit(data, epochs=3, test=test if tested else None)
        state = trainer.state()
    assert data.reads == 3 and test.reads == (3 if tested else 0)
    assert [e.samples for e in history.epochs] == [44] * 3
    for name, value in plain.state_dict().items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)


def test_an_iterator_is_still_found_before_the_first_step():
    batches = [samples(8), samples(8)]
    model, optimizer = parts()
    step = handheld.capture(model, F.cross_entropy, optimizer, tuple(map(torch.from_numpy, batches[0])))
    with step.plan("reference").start() as trainer:
        with pytest.raises(DataError, match="read only once, but there are 2 epochs"):
            trainer.fit(iter(batches), epochs=2)
        assert trainer.fit(iter(batches), epochs=1).steps == 2
    once = IterableData(batch for batch in batches)
    assert len(list(once.epoch(0))) == 2
    with pytest.raises(DataError, match="epoch 1 needs it again"):
        next(once.epoch(1))
