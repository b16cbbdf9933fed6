"""Whole captured steps on the OpenCL device and on the reference."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import handheld
from handheld.errors import HandheldError, TargetLost
from helpers.equality import relative
from helpers.nets import Net, batch, net, sgd

DEVICES = ["reference:cpu", "opencl"]


def test_the_step_is_few_launches_and_moves_nothing() -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    with step.plan("opencl").start() as trainer:
        trainer.step(*batch())
        before = trainer.counters
        for i in range(4):
            trainer.step(*batch(seed=i))
        spent = trainer.counters - before
        assert spent.uploads == 4 * 2 and spent.downloads == 4 and spent.download_bytes == 16
        assert spent.finishes == spent.allocations == spent.bindings == spent.builds == spent.copies == 0
        assert spent.launches == 4 * trainer.plan.graphs["train"].launches
        assert trainer.plan.graphs["train"].launches < 25


def test_reruns_are_bit_identical() -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch(), evaluate=False)
    results = []
    for _ in range(2):
        with step.plan("opencl").start() as trainer:
            start = trainer.state()
            for i in range(3):
                trainer.step(*batch(seed=i))
            results.append(trainer.state())
            trainer.load(start)
    assert all((results[0][k] == results[1][k]).all() for k in results[0])


def test_every_node_knows_its_origin() -> None:
    model = net()
    graph = handheld.capture(model, F.cross_entropy, sgd(model), batch()).graphs["train"]
    assert {n.origin.phase for n in graph.nodes} == {"forward", "backward", "update"}
    assert all(n.origin.path and n.origin.torch_op for n in graph.nodes)
    paths = {(n.origin.phase, n.origin.path) for n in graph.nodes}
    assert {("forward", "conv"), ("backward", "conv"), ("forward", "norm"), ("backward", "norm")} <= paths


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_draws_new_masks_each_step(device: str) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
    nn.init.ones_(model[1].weight)
    step = handheld.capture(model, lambda y: y.sum(), torch.optim.SGD(model.parameters(), lr=0.0), (torch.ones(1, 64),))
    with step.plan(device).start() as trainer:
        losses = [float(trainer.step(np.ones((1, 64), np.float32))) for _ in range(6)]
        assert len(set(losses)) > 2 and 20 < np.mean(losses) < 110
        assert float(trainer.run("evaluate", np.ones((1, 64), np.float32))) == pytest.approx(64.0)


def test_frozen_parameters_cost_nothing() -> None:
    model = net()
    for p in (*model.conv.parameters(), *model.norm.parameters()):
        p.requires_grad_(False)
    step = handheld.capture(
        model,
        F.cross_entropy,
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        batch(),
        evaluate=False,
    )
    graph = step.graphs["train"]
    assert not any(n.op.startswith("conv_") for n in graph.nodes)
    assert not any(n.origin.phase == "backward" and n.origin.path in ("conv", "norm") for n in graph.nodes)


def test_a_parameter_without_gradient_is_reported() -> None:
    class Unused(Net):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(3, 3)

    model = Unused()
    with pytest.warns(UserWarning, match=r"no gradient reaches 2 parameters.*extra\.weight"):
        step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    assert step.no_gradient() == ["extra.weight", "extra.bias"]


@pytest.mark.parametrize("device", DEVICES)
def test_tied_weights_are_one_slot(device: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    torch.manual_seed(0)
    model = Tied()
    x, y = torch.arange(8) % 11, torch.arange(8) % 5
    step = handheld.capture(model, F.cross_entropy, sgd(model), (x, y))
    assert step.slots["embed.weight"].names == ("embed.weight", "head.weight")
    reference = copy.deepcopy(model)
    optimizer = sgd(reference)
    with step.plan(device).start() as trainer:
        for _ in range(2):
            trainer.step(x, y)
            optimizer.zero_grad()
            F.cross_entropy(reference(x), y).backward()
            optimizer.step()
        state = trainer.state()
    assert (state["embed.weight"] == state["head.weight"]).all()
    assert relative(state["embed.weight"], reference.embed.weight.detach().numpy()) < 1e-6
    step.copy_to(model)
    assert relative(model.head.weight.detach().numpy(), reference.embed.weight.detach().numpy()) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["norm", "value"])
def test_clipping(kind: str, device: str) -> None:
    model = net().eval()
    options = {"clip_norm": 0.05} if kind == "norm" else {"clip_value": 0.01}
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch(), evaluate=False, **options)
    reference = copy.deepcopy(model)
    optimizer = sgd(reference)
    with step.plan(device).start() as trainer:
        for i in range(2):
            trainer.step(*batch(seed=i))
            optimizer.zero_grad()
            x, y = batch(seed=i)
            F.cross_entropy(reference(x), y).backward()
            if kind == "norm":
                nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
            else:
                nn.utils.clip_grad_value_(reference.parameters(), 0.01)
            optimizer.step()
        state = trainer.state()
    for name, value in reference.named_parameters():
        assert relative(state[name], value.detach().numpy()) < 2e-6, name


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_accumulation(device: str) -> None:
    model = net().eval()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch(), evaluate=False, accumulate=3)
    reference = copy.deepcopy(model)
    optimizer = sgd(reference)
    with step.plan(device).start() as trainer:
        for i in range(6):
            trainer.step(*batch(seed=i))
            x, y = batch(seed=i)
            (F.cross_entropy(reference(x), y) / 3).backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        state = trainer.state()
    assert state["optimizer.step"] == 2
    for name, value in reference.named_parameters():
        assert relative(state[name], value.detach().numpy()) < 2e-6, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_rate_changes_without_a_new_plan(device: str) -> None:
    model = nn.Linear(3, 1, bias=False)
    start = model.weight.detach().numpy().copy()
    step = handheld.capture(model, lambda y: y.sum(), torch.optim.SGD(model.parameters(), lr=1.0), (torch.ones(1, 3),))
    with step.plan(device).start() as trainer:
        trainer.step(torch.ones(1, 3))
        trainer.set_rate(0.25)
        trainer.step(torch.ones(1, 3))
        assert trainer.rates() == [0.25]
        with pytest.raises(HandheldError, match=r"no optimizer adam. Try one of: optimizer"):
            trainer.rates("adam")
        assert np.allclose(trainer.state()["weight"], start - 1.25)


def test_a_rate_says_whose_it_is_where_there_are_several() -> None:
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    capture = handheld.Capture({"a": a, "b": b})
    groups = [{"params": [a.weight], "lr": 0.5}, {"params": [a.bias], "lr": 0.25}]
    x = (torch.ones(2, 3),)
    capture.train(lambda g: a(g[0]).sum(), torch.optim.SGD(groups), x, "first")
    capture.train(lambda g: b(g[0]).sum(), torch.optim.SGD(b.parameters(), 0.125), x, "second")
    with capture.step().plan("reference:cpu").start() as trainer:
        assert trainer.rates("first") == [0.5, 0.25] and trainer.rates("second") == [0.125]
        for call in (lambda: trainer.set_rate(1.0), trainer.rates):
            with pytest.raises(HandheldError, match=r"several optimizers, .*\(of first\)"):
                call()
        with pytest.raises(HandheldError, match=r"2 parameter groups\. Try: set_rate"):
            trainer.set_rate(1.0, optimizer="first")
        with pytest.raises(HandheldError, match="no group 2; groups are 0 to 1"):
            trainer.set_rate(1.0, 2, "first")
        trainer.set_rate(1.0, 1, "first")
        trainer.set_rate(2.0, optimizer="second")
        assert trainer.rates("first") == [0.5, 1.0] and trainer.rates("optimizer_second") == [2.0]
        with pytest.raises(HandheldError, match=r"fit runs the graph 'train'.*first, second"):
            trainer.fit([x], epochs=1)


def test_rates_are_in_the_order_of_the_groups() -> None:
    parts = nn.ModuleList(nn.Linear(1, 1) for _ in range(12))
    groups = [{"params": part.parameters(), "lr": float(n)} for n, part in enumerate(parts)]
    step = handheld.capture(
        lambda b: sum(part(b[0]).sum() for part in parts),
        None,
        torch.optim.SGD(groups),
        (torch.ones(1, 1),),
        modules=parts,
    )
    with step.plan("reference:cpu").start() as trainer:
        assert trainer.rates() == [float(n) for n in range(12)]


def test_a_second_trainer_goes_on_where_the_first_one_was() -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    apart = step.copy()
    first = step.plan("reference:cpu").start()
    first.step(*batch())
    learned = first.state()
    second = step.plan("reference:cpu").start()
    assert all(np.array_equal(second.state()[name], learned[name]) for name in learned)
    with pytest.raises(HandheldError, match=r"another one was started .*step\.copy\(\)"):
        first.step(*batch())
    second.step(*batch())
    first.close()  # Closing loses no state.
    second.close()
    assert step.state()["handheld.step"] == 2
    with apart.plan("reference:cpu").start() as one, step.plan("reference:cpu").start() as other:
        one.step(*batch())
        other.step(*batch())
    assert (apart.state()["handheld.step"], step.state()["handheld.step"]) == (1, 3)


def test_a_device_that_is_lost_leaves_the_state_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    before = {name: value.copy() for name, value in step.values.items()}
    with pytest.raises(TargetLost, match="lost after 1 step"), step.plan("reference:cpu").start() as trainer:
        trainer.step(*batch())
        reads, read = iter(range(3)), trainer.session.read_slot

        def fail(name: str) -> np.ndarray:
            if next(reads, None) is None:
                raise TargetLost("it cannot be read any more")
            return read(name)

        monkeypatch.setattr(trainer.session, "read_slot", fail)
        raise TargetLost("lost after 1 step")
    assert trainer.closed and next(reads, None) is None
    assert all(np.array_equal(step.values[name], value) for name, value in before.items())


@pytest.mark.parametrize("device", DEVICES)
def test_two_updates_share_one_state(device: str) -> None:
    torch.manual_seed(0)
    g, d = nn.Linear(4, 3), nn.Linear(3, 1)
    g2, d2 = copy.deepcopy(g), copy.deepcopy(d)
    og, od = torch.optim.SGD(g.parameters(), 0.1), torch.optim.Adam(d.parameters(), 0.01)
    real, noise = torch.randn(5, 3), torch.randn(5, 4)

    def d_loss(b: tuple[torch.Tensor, torch.Tensor], g: nn.Module = g, d: nn.Module = d) -> torch.Tensor:
        fake = g(b[1]).detach()
        return F.softplus(-d(b[0])).mean() + F.softplus(d(fake)).mean()

    def g_loss(b: tuple[torch.Tensor], g: nn.Module = g, d: nn.Module = d) -> torch.Tensor:
        return F.softplus(-d(g(b[0]))).mean()

    capture = handheld.Capture({"g": g, "d": d})
    capture.train(d_loss, od, (real, noise), "d").train(g_loss, og, (noise,), "g")
    step = capture.step()
    assert not any(n.origin.path == "g" and n.origin.phase == "backward" for n in step.graphs["d"].nodes)
    og2, od2 = torch.optim.SGD(g2.parameters(), 0.1), torch.optim.Adam(d2.parameters(), 0.01)
    with step.plan(device).start() as trainer:
        for _ in range(3):
            trainer.run("d", real, noise)
            trainer.run("g", noise)
            for loss, opt, args in ((d_loss, od2, (real, noise)), (g_loss, og2, (noise,))):
                opt.zero_grad()
                loss(args, g2, d2).backward()
                opt.step()
        state = trainer.state()
    for prefix, module in (("g", g2), ("d", d2)):
        for name, value in module.named_parameters():
            assert relative(state[f"{prefix}.{name}"], value.detach().numpy()) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_a_target_network_is_copied_when_asked(device: str) -> None:
    online, target = nn.Linear(3, 2), nn.Linear(3, 2)
    capture = handheld.Capture({"online": online, "target": target})
    capture.train(
        lambda b: F.mse_loss(online(b[0]), target(b[0]).detach()),
        torch.optim.SGD(online.parameters(), 0.1),
        (torch.ones(2, 3),),
    )
    step = capture.copy("sync", [(target, online)]).step()
    with step.plan(device).start() as trainer:
        trainer.step(torch.ones(2, 3))
        before = trainer.state()
        assert not np.allclose(before["target.weight"], before["online.weight"])
        trainer.run("sync")
        after = trainer.state()
        assert (after["target.weight"] == before["online.weight"]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_predict_and_evaluate_change_nothing(device: str) -> None:
    model = net()
    step = handheld.capture(model, F.cross_entropy, sgd(model), batch())
    model.eval()
    x, y = batch(seed=3)
    with step.plan(device).start() as trainer:
        before = trainer.state()
        loss, outputs = trainer.evaluate(x, y)
        predicted = trainer.predict(x)
        after = trainer.state()
    want = model(x)
    assert relative(predicted, want.detach().numpy()) < 1e-5
    assert relative(outputs["output"], want.detach().numpy()) < 1e-5
    assert float(loss) == pytest.approx(F.cross_entropy(want, y).item(), rel=1e-5)
    assert all((before[k] == after[k]).all() for k in before if k != "handheld.step")


def test_the_users_module_is_left_alone() -> None:
    model = net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    handheld.capture(model, F.cross_entropy, sgd(model), batch())
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.training and all(p.grad is None for p in model.parameters())


def test_a_dictionary_of_modules_is_copied_back() -> None:
    """`copy_to` with the captured dictionary updates every module."""
    torch.manual_seed(0)
    parts = {"a": nn.Linear(3, 4), "b": nn.Linear(4, 2)}
    both = [*parts["a"].parameters(), *parts["b"].parameters()]
    builder = handheld.Capture(parts)
    x = torch.randn(5, 3)
    builder.train(lambda b: parts["b"](parts["a"](b[0])).square().mean(), torch.optim.SGD(both, 0.1), (x,), "train")
    step = builder.step()
    before = parts["a"].weight.detach().clone()
    with step.plan("reference:cpu").start() as trainer:
        trainer.step(x)
    step.copy_to(parts)
    assert not torch.equal(parts["a"].weight, before)
    np.testing.assert_array_equal(parts["b"].bias.detach().numpy(), step.state()["b.bias"])
