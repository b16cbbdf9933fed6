"""What capture guarantees beyond single ops: notes, warnings, state, unchanged modules."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from handheld import capture
from handheld.errors import BatchError, CaptureError, UnsupportedOp
from handheld.graph.graph import Graph
from handheld.step import Step


def step_of(model: nn.Module, fn: Any, batch: Any, **options: Any) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return capture(fn, optimizer=optimizer, batch=batch, modules=model, evaluate=False, **options)


def trained(step: Step, *batches: Any, device: str = "reference:cpu") -> dict[str, np.ndarray]:
    with step.plan(device).start() as trainer:
        for batch in batches:
            trainer.step(*batch)
        return trainer.state()


def eager(model: nn.Module, fn: Any, *batches: Any) -> dict[str, np.ndarray]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        fn(batch).backward()
        optimizer.step()
    return {k: v.detach().numpy() for k, v in model.state_dict().items()}


def same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def graph_of(step: Step) -> Graph:
    return step.graphs["train"]


# ── indices that come with the batch ─────────────────────────────────────────────────────────────


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens).mean(1))


def test_indices_are_checked_before_anything_runs() -> None:
    model = Words()
    batch = (torch.randint(0, 7, (2, 5)), torch.tensor([1, -100]))
    step = step_of(model, lambda b: F.cross_entropy(model(b[0]), b[1]), batch)
    assert graph_of(step).notes["ranges"] == (("0", 0, 7, None), ("1", 0, 3, -100))
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(*batch)
        for bad in ((torch.full((2, 5), 7), batch[1]), (batch[0], torch.tensor([3, 0]))):
            with pytest.raises(BatchError, match="indices must be"):
                trainer.step(*bad)


def test_an_index_that_is_computed_is_not_checked() -> None:
    model = Words()
    batch = (torch.randint(0, 7, (2, 5)),)
    step = step_of(model, lambda b: model((b[0] + 1) % 7).sum(), batch)
    assert "ranges" not in graph_of(step).notes


def test_two_uses_of_an_index_narrow_its_range() -> None:
    model = nn.ModuleList([nn.Embedding(7, 4), nn.Embedding(5, 4)])
    batch = (torch.randint(0, 5, (3,)),)
    step = step_of(model, lambda b: (model[0](b[0]) * model[1](b[0])).sum(), batch)
    assert graph_of(step).notes["ranges"] == (("0", 0, 5, None),)


# ── values that are read ─────────────────────────────────────────────────────────────────────────


def test_a_value_of_the_batch_that_is_read_is_told() -> None:
    model = nn.Linear(3, 2)

    def fn(b: Any) -> torch.Tensor:
        return model(b[0]).sum() * (2.0 if b[0].sum() > 0 else 3.0)

    with pytest.warns(UserWarning, match="read values while the step was captured"):
        step = step_of(model, fn, (torch.ones(4, 3),))
    (note,) = graph_of(step).notes["frozen"]
    assert "from input 0" in note and "read True" in note
    assert "test_capture.py:" in note and "`return model(b[0]).sum() * (2.0 if" in note


@pytest.mark.parametrize("read", [
    lambda x: x.sum().item(), lambda x: float(x.sum()), lambda x: x.tolist()[0][0],
    lambda x: x.detach().numpy()[0, 0], lambda x: int(x.argmax()), lambda x: bool((x > 0).any()),
])  # fmt: skip
def test_every_way_to_read_is_told(read: Any) -> None:
    model = nn.Linear(3, 2)
    with pytest.warns(UserWarning, match="now frozen"):
        step_of(model, lambda b: model(b[0]).sum() * float(read(b[0])), (torch.ones(4, 3),))


def test_a_constant_that_is_read_is_not_told() -> None:
    model = nn.Linear(3, 2)

    def fn(b: Any) -> torch.Tensor:
        rates = [x.item() for x in torch.linspace(0, 1, 3)]
        scale = torch.sqrt(torch.tensor(b[0].shape[1] * 3.0)).item()
        return model(b[0]).sum() * scale + rates[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = step_of(model, fn, (torch.ones(4, 3),))
    assert "frozen" not in graph_of(step).notes


def test_selection_by_the_batch_is_fixed_and_told() -> None:
    model = nn.Linear(3, 2)
    batch = (torch.randn(4, 3), torch.tensor([True, False, True, True]))

    def fn(b: Any) -> torch.Tensor:
        return model(b[0])[b[1]].square().mean()

    twin = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="nonzero"):
        step = step_of(model, fn, batch)
    same(trained(step, batch), eager(twin, lambda b: twin(b[0])[b[1]].square().mean(), batch))


def test_selection_by_the_model_is_an_error() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(UnsupportedOp, match=r"torch\.where"):
        step_of(model, lambda b: model(b[0])[model(b[0]) > 0].sum(), (torch.randn(4, 3),))


# ── modules are left as they were ────────────────────────────────────────────────────────────────


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.table: dict[str, torch.Tensor] = {}
        self.list: list[torch.Tensor] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if not hasattr(self, "positions"):
            self.positions = torch.arange(3.0)
        self.table["bias"] = self.linear.bias * 2
        self.list.append(x)
        return self.linear(x * self.positions) + self.table["bias"]


def test_caches_do_not_stay_on_modules() -> None:
    model = Caching()
    step_of(model, lambda b: model(b[0]).sum(), (torch.randn(4, 3),))
    assert not hasattr(model, "positions") and not model.table and not model.list
    assert model.calls == 1
    found = model(torch.randn(4, 3))
    assert not isinstance(found, FakeTensor) and not isinstance(model.positions, FakeTensor)
    # A second capture works with the cache that exists now.
    step_of(model, lambda b: model(b[0]).sum(), (torch.randn(4, 3),))


def test_gradients_and_random_state_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    model[0].weight.grad = torch.ones(2, 3)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    step_of(model, lambda b: model(b[0]).sum(), (torch.randn(4, 3, generator=torch.Generator()),))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(model[0].weight.grad, torch.ones(2, 3)) and model[0].bias.grad is None


# ── state ────────────────────────────────────────────────────────────────────────────────────────


class Averages(nn.Module):
    """One buffer is written in place, the other is replaced by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            self.count += 1
        return self.linear(x - self.mean)


def test_buffers_are_state_however_they_are_written() -> None:
    model = Averages()
    twin = copy.deepcopy(model)
    batches = [(torch.randn(4, 3),) for _ in range(3)]
    step = step_of(model, lambda b: model(b[0]).square().mean(), batches[0])
    assert torch.equal(model.mean, torch.zeros(3)) and int(model.count) == 0
    same(trained(step, *batches), eager(twin, lambda b: twin(b[0]).square().mean(), *batches))


def test_a_view_of_a_parameter_made_before_is_the_parameter() -> None:
    model = nn.Linear(3, 3)
    model.turned = model.weight.detach().t()
    twin = nn.Linear(3, 3)
    twin.load_state_dict(model.state_dict())
    twin.turned = twin.weight.detach().t()
    batches = [(torch.randn(4, 3),) for _ in range(2)]
    step = step_of(model, lambda b: (model(b[0]) @ model.turned).square().mean(), batches[0])
    assert not any(s.role == "constant" for s in step.slots.values())
    same(trained(step, *batches), eager(twin, lambda b: (twin(b[0]) @ twin.turned).square().mean(), *batches))


def test_channels_last_models_train_alike() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    model = model.to(memory_format=torch.channels_last)
    twin = copy.deepcopy(model)
    batches = [(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),) for _ in range(2)]
    step = step_of(model, lambda b: model(b[0]).square().mean(), batches[0])
    same(trained(step, *batches), eager(twin, lambda b: twin(b[0]).square().mean(), *batches))


def test_a_tensor_that_is_no_buffer_cannot_be_changed() -> None:
    model = nn.Linear(3, 2)
    outside = torch.zeros(3)

    def fn(b: Any) -> torch.Tensor:
        outside.add_(b[0].mean(0))
        return model(b[0] + outside).sum()

    with pytest.raises(CaptureError, match="register_buffer"):
        step_of(model, fn, (torch.randn(4, 3),))


# ── autograd ─────────────────────────────────────────────────────────────────────────────────────


def test_checkpointing_draws_the_same_dropout_again() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Tanh())
    head = nn.Linear(5, 1)
    model = nn.ModuleList([layer, head])
    batch = (torch.randn(4, 5),)

    def kept(b: Any) -> torch.Tensor:
        return head(layer(b[0])).sum()

    def again(b: Any) -> torch.Tensor:
        return head(checkpoint(layer, b[0], use_reentrant=False)).sum()

    same(trained(step_of(model, again, batch), batch), trained(step_of(model, kept, batch), batch))


def test_reentrant_checkpointing_gives_the_same() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    batch = (torch.randn(2, 3),)

    def again(b: Any) -> torch.Tensor:
        return checkpoint(model, b[0].clone().requires_grad_(), use_reentrant=True).sum()

    want = trained(step_of(model, lambda b: model(b[0]).sum(), batch), batch)
    same(trained(step_of(model, again, batch), batch), want)


def test_dropout_in_attention_is_captured() -> None:
    model = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    batch = (torch.randn(2, 5, 8),)
    step = step_of(model, lambda b: model(b[0], b[0], b[0])[0].square().mean(), batch)
    with step.plan("reference:cpu").start() as trainer:
        losses = [float(trainer.step(*batch)) for _ in range(3)]
    assert len(set(losses)) == 3 and np.isfinite(losses).all()


def attending(fn: Any, *shape: int) -> Any:
    """The step of a model that passes three projections of its batch to `fn`."""
    torch.manual_seed(0)
    b, h, n, d = shape
    model = nn.Linear(h * d, 3 * h * d)

    def loss(batch: Any) -> torch.Tensor:
        parts = model(batch[0]).view(b, n, 3, h, d).permute(2, 0, 3, 1, 4)
        return fn(*parts.unbind(0)).square().mean()

    return step_of(model, loss, (torch.randn(b, n, h * d),))


def by_hand(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return F.dropout(scores.softmax(-1), dropout) @ v


def test_attention_keeps_no_matrix_of_queries_by_keys() -> None:
    seen = torch.ones(64, 64, dtype=torch.bool).tril()
    for options in ({}, {"is_causal": True}, {"attn_mask": seen}, {"dropout_p": 0.1}):
        step = attending(lambda *qkv, o=options: F.scaled_dot_product_attention(*qkv, **o), 2, 2, 64, 4)
        graph = step.graphs["train"]
        assert [n.op for n in graph.nodes if n.op.startswith("attention")] == ["attention", "attention_grad"]
        assert not [t for t in graph.tensors.values() if t.size >= 2 * 64 * 64 and t.role in ("activation", "gradient")]


def test_dropout_in_attention_drops_what_dropout_does() -> None:
    whole = attending(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.4), 2, 2, 7, 4)
    apart = attending(lambda q, k, v: by_hand(q, k, v, dropout=0.4), 2, 2, 7, 4)
    assert "attention" not in {n.op for n in apart.graphs["train"].nodes}
    batch = (torch.randn(2, 7, 8),)
    for device in ("reference:cpu", "opencl"):
        same(trained(whole, batch, device=device), trained(apart, batch, device=device))


def test_a_trained_mask_and_very_wide_heads_are_taken_apart() -> None:
    bias = nn.Parameter(torch.zeros(5, 5))
    for fn, shape in (
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, bias), (1, 2, 5, 4)),
        (F.scaled_dot_product_attention, (1, 1, 5, 272)),
    ):
        step = attending(fn, *shape)
        assert "attention" not in {n.op for n in step.graphs["train"].nodes}


# ── where nodes come from ────────────────────────────────────────────────────────────────────────


def test_nodes_know_their_module() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 2))

    def fn(b: Any) -> torch.Tensor:
        y = model(b[0])
        y[:, 0] = y[:, 0] * 2  # A write into a view creates additional autograd nodes.
        return F.cross_entropy(y, b[1])

    step = step_of(model, fn, (torch.randn(2, 3, 8, 8), torch.tensor([0, 1])))
    assert all(n.origin.path for n in graph_of(step).nodes)
    backward = {n.origin.path for n in graph_of(step).nodes if n.origin.phase == "backward"}
    assert {"0", "4", "loss"} <= backward


class Turned(nn.Module):
    """A rotation by a buffer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("table", torch.polar(torch.ones(4, 3), torch.randn(4, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(self.inner(x).unflatten(-1, (3, 2)))
        return torch.view_as_real(pairs * self.table).flatten(-2)


def test_a_complex_buffer_is_a_constant() -> None:
    model, batch = Turned(), (torch.randn(2, 4, 6),)
    twin = copy.deepcopy(model)

    def loss(of: nn.Module) -> Any:
        return lambda b: of(b[0]).square().mean() + of(b[0]).sum()

    got = trained(step_of(model, loss(model), batch), batch)
    want = eager(twin, loss(twin), batch)
    np.testing.assert_allclose(got["inner.weight"], want["inner.weight"], rtol=1e-5)


def test_a_complex_parameter_says_what_to_do() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
    with pytest.raises(CaptureError, match=r"weight is a complex parameter.*view_as_real"):
        step_of(model, lambda b: (model.weight * b).abs().sum(), torch.randn(3))


def test_a_system_that_is_too_large_is_an_error() -> None:
    model = nn.Linear(200, 200)
    with pytest.raises(UnsupportedOp, match="200 unknowns"):
        step_of(model, lambda b: torch.linalg.inv(model(b)).sum(), torch.randn(200, 200))
