"""Batches of any length: evaluation and prediction equal PyTorch's on all samples, and nothing is left out unsaid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import BatchError, HandheldError
from helpers.sizes import BATCH, COUNT, Net, Pair, captured, first_of, samples, torch_results, worst


@pytest.mark.parametrize("device", ["opencl", "reference:cpu"])
@pytest.mark.parametrize("count", [COUNT, 64, 5, 1, 100])
def test_evaluate_and_predict_take_any_number_of_samples(device, count):
    model, _, step = captured()
    x, y = samples(count)
    with step.plan(device).start() as trainer:
        trainer.step(*samples(BATCH))  # The state must survive the added graphs.
        loss, outputs = trainer.evaluate(x, y)
        step.copy_to(model)
        expected, scores = torch_results(model, x, y)
        assert float(loss) == pytest.approx(expected, rel=1e-5) and not loss.note
        np.testing.assert_allclose(outputs["output"], scores, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trainer.predict(x), scores, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trainer.predict(torch.from_numpy(x)), scores, rtol=1e-4, atol=1e-5)
    assert all("@" not in name for name in step.graphs)


def test_a_step_of_another_size_equals_pytorch():
    model, optimizer, step = captured(clip_norm=0.5, model=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    x, y = samples()
    with step.plan("opencl").start() as trainer:
        for part in (slice(0, 32), slice(32, 50), slice(0, 32)):
            loss = trainer.step(x[part], y[part])
            optimizer.zero_grad()
            expected = F.cross_entropy(model(torch.from_numpy(x[part])), torch.from_numpy(y[part]))
            expected.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
        state = trainer.state()
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss])
@pytest.mark.parametrize("count", [COUNT, 5, 33])
def test_a_step_file_fills_up_and_is_exact(tmp_path, loss, count):
    model, _, step = captured(loss)
    step.save(tmp_path / "net.step")
    x, y = samples(count)
    if loss is F.mse_loss:
        y = np.eye(3, dtype=np.float32)[y]
    expected, scores = torch_results(model, x, y, loss)
    with handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer:
        got, outputs = trainer.evaluate(x, y)
        assert float(got) == pytest.approx(expected, rel=1e-4) and not got.note
        np.testing.assert_allclose(outputs["output"], scores, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trainer.predict(x), scores, rtol=1e-4, atol=1e-5)
        with pytest.raises(BatchError, match=r"has 18 samples; the plan has training graphs for 32\. Try: handheld"):
            trainer.step(np.zeros((18, 6), np.float32), np.zeros((18, *y.shape[1:]), y.dtype))


def test_a_loss_that_is_no_mean_says_which_samples_it_covers(tmp_path):
    model, _, step = captured(lambda out, y: worst(out, F.one_hot(y, 3)))
    step.save(tmp_path / "net.step")
    x, y = samples()
    with handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer:
        loss, outputs = trainer.evaluate(x, y)
    assert len(outputs["output"]) == 50
    assert loss.note.startswith("the loss covers 32 of 50 samples: the loss of 18 samples cannot be known")
    first, _ = torch_results(model, x[:32], y[:32], lambda out, y: worst(out, F.one_hot(y, 3)))
    assert float(loss) == pytest.approx(first, rel=1e-5)


class Mixing(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return out - out.mean(0)


def test_outputs_that_cannot_be_joined_are_an_error(tmp_path):
    _, _, step = captured(first_of, model=Pair())
    x, _ = samples()
    with step.plan("opencl").start() as trainer:
        with pytest.raises(HandheldError, match=r"'output.1' of graph 'predict' has shape \(\), not one row.*Try: "):
            trainer.predict(x)
        assert trainer.predict(x[:18])["output.0"].shape == (18, 3)  # One batch has its own graph.


def test_samples_that_influence_each_other_are_not_filled_up(tmp_path):
    model, _, step = captured(model=Mixing())
    step.save(tmp_path / "net.step")
    x, y = samples()
    with (
        handheld.load(tmp_path / "net.step").plan("opencl").start() as trainer,
        pytest.raises(HandheldError, match=r"depends on the other samples .*Try: .*--batch 32,18"),
    ):
        trainer.predict(x)
    with step.plan("opencl").start() as trainer:
        np.testing.assert_allclose(trainer.predict(x[:18]), torch_results(model, x[:18], y[:18])[1], atol=1e-5)


def test_a_packaged_size_is_used_before_the_rest_is_filled_up(tmp_path):
    from handheld.frontend.capture import Capture

    torch.manual_seed(1)
    model = Mixing()
    builder = Capture(model)
    for size in (32, 18):
        x, y = (torch.from_numpy(a) for a in samples(size))
        builder.evaluate(lambda b: (None, model(b)), x, f"predict@{size}")
    builder.step().save(tmp_path / "net.step")
    x, y = samples()
    step = handheld.load(tmp_path / "net.step")
    with step.plan("opencl", graphs=["predict@32"]).start() as trainer:
        got = trainer.predict(x)
        assert list(trainer.plan.graphs) == ["predict@32", "predict@18"]
    np.testing.assert_allclose(got[32:], torch_results(model, x[32:], y[32:])[1], atol=1e-5)


def test_code_that_does_not_run_with_another_size_is_filled_up():
    class Fixed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.zeros(BATCH, 1)

    model, _, step = captured(model=Fixed())
    x, y = samples()
    with step.plan("opencl").start() as trainer:
        loss, _ = trainer.evaluate(x, y)
        assert "cannot be captured for a batch of 18" in trainer.refused["evaluate", 18]
        with pytest.raises(BatchError, match=r"cannot be captured for a batch of 18: .*RuntimeError"):
            trainer.step(x[:18], y[:18])
    assert float(loss) == pytest.approx(torch_results(_plain(model), x, y)[0], rel=1e-5)


def _plain(model: nn.Module) -> nn.Module:
    plain = Net()
    plain.load_state_dict(model.state_dict())
    return plain


def test_a_changed_model_is_not_captured_again():
    model, _, step = captured()
    model.b = nn.Linear(12, 3)
    x, _ = samples()
    with step.plan("opencl").start() as trainer:
        trainer.predict(x)
        assert "b.weight is another tensor than when the model was captured" in trainer.refused["predict", 18]


def test_the_mode_at_the_capture_counts():
    model, _, step = captured()
    model.eval()
    x, y = samples()
    with step.plan("opencl").start() as trainer:
        before = trainer.state()["norm.running_mean"]
        trainer.step(x[:18], y[:18])
        assert not np.array_equal(before, trainer.state()["norm.running_mean"])
    assert not model.training


def test_no_samples_and_other_shapes_are_errors():
    _, _, step = captured()
    x, y = samples()
    with step.plan("null").start() as trainer:
        with pytest.raises(BatchError, match="the batch has no samples"):
            trainer.predict(x[:0])
        with pytest.raises(BatchError, match=r"has shape \(50, 5\)"):
            trainer.predict(x[:, :5])
        with pytest.raises(BatchError, match="has shape"):
            trainer.evaluate(x, y[:49])


def test_at_most_eight_other_sizes():
    _, _, step = captured()
    x, _ = samples()
    with step.plan("null").start() as trainer:
        for size in range(1, 12):
            assert trainer.predict(x[:size]).shape == (size, 3)
        assert len(trainer.plan.graphs) == 3 + 8
