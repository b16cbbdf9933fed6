"""Compares the CTC loss and its gradient with PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handheld.kernels.ctc import lower_ctc, lower_ctc_grad
from helpers.harness import caps_of_kind, error, make, run_node

# steps, samples, classes, labels
SIZES = [(1, 1, 1, 0), (1, 1, 2, 1), (5, 3, 4, 2), (13, 2, 3, 5), (29, 5, 7, 11), (40, 1, 131, 17), (200, 2, 31, 67)]


def run(kind, logp, targets, inputs, labels, blank=0, zero_infinity=False, d=None):
    """The losses and the gradient of their sum weighted by `d`."""
    samples = logp.shape[1]
    arrays = [logp.numpy().astype(np.float32)] + [x.numpy().astype(np.int32) for x in (targets, inputs, labels)]
    graph, data = make("ctc", arrays, None, [((samples,), "f32")], {"blank": blank})
    (loss,) = run_node(lower_ctc, graph, data, caps_of_kind(kind))
    weights = np.ones(samples, np.float32) if d is None else d.numpy().astype(np.float32)
    attrs = {"blank": blank, "zero_infinity": zero_infinity}
    graph, data = make("ctc_grad", [weights, *arrays], None, [(tuple(logp.shape), "f32")], attrs)
    (grad,) = run_node(lower_ctc_grad, graph, data, caps_of_kind(kind))
    return loss, grad


def draw(steps, samples, classes, labels, seed=0):
    torch.manual_seed(seed)
    logp = (torch.randn(steps, samples, classes, dtype=torch.float64) * 2).log_softmax(2).float().double()
    inputs, lengths = torch.randint(steps // 2, steps + 1, (samples,)), torch.randint(labels + 1, (samples,))
    return logp, torch.randint(1, max(classes, 2), (samples, labels)), inputs, lengths


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("blank", [0, -1])
def test_random_targets(sizes, blank, kind):
    """Targets have repeated labels; some are too long for their steps."""
    logp, targets, inputs, lengths = draw(*sizes)
    blank %= sizes[2]
    targets = (targets + blank) % sizes[2]
    d, x = torch.rand(sizes[1], dtype=torch.float64) + 0.5, logp.clone().requires_grad_()
    want = torch.nn.functional.ctc_loss(x, targets, inputs, lengths, blank, "none", zero_infinity=False)
    (want_grad,) = torch.autograd.grad(want, x, d.float().double())
    loss, grad = run(kind, logp, targets, inputs, lengths, blank, d=d)
    finite = torch.isfinite(want).numpy()
    assert np.isinf(loss[~finite]).all()
    assert error(loss[finite], want.detach().numpy()[finite]) < 1e-5
    assert error(grad[:, finite], want_grad.numpy()[:, finite]) < 2e-5
    same_nan = np.isnan(grad) == np.isnan(want_grad.numpy())
    assert same_nan.all()


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_blank_as_a_label(kind):
    """PyTorch accepts it, and its loss is ours, but its gradient is not that of its loss; ours is."""
    logp, _, inputs, _ = draw(13, 2, 3, 5)
    targets, lengths = torch.tensor([[1, 0, 2], [0, 0, 1]]), torch.tensor([3, 2])

    def loss_of(scores: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.ctc_loss(scores.log_softmax(2), targets, inputs, lengths, reduction="none")

    loss, grad = run(kind, logp, targets, inputs, lengths)
    assert error(loss, loss_of(logp).numpy()) < 1e-5
    step = torch.randn(logp.shape, dtype=torch.float64) * 1e-5
    want = (loss_of(logp + step) - loss_of(logp - step)) / 2
    np.testing.assert_allclose((torch.from_numpy(grad) * step).sum((0, 2)), want, rtol=1e-4)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_one_sure_path_among_many_unlikely_ones(kind):
    """The network is nearly sure of blanks, and the only alignment needs a label at every step."""
    scores = torch.full((60, 1, 4), -30.0, dtype=torch.float64)
    scores[:, :, 0] = 0
    logp = scores.log_softmax(2)
    targets = torch.tensor([[1, 2, 3] * 20])
    want = torch.nn.functional.ctc_loss(logp, targets, (60,), (60,), reduction="none")
    loss, grad = run(kind, logp, targets, torch.tensor([60]), torch.tensor([60]))
    assert error(loss, want.numpy()) < 1e-5 and np.isfinite(grad).all()
    np.testing.assert_allclose(grad[np.arange(60), 0, targets[0].numpy()], -1, atol=1e-5)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_bad_labels_and_lengths_stay_inside_the_buffers(kind):
    """A label that is no class makes its sample NaN; one after the end of the target does not matter."""
    logp, *_ = draw(6, 4, 5, 2)
    targets = torch.tensor([[1, 2], [1, 7], [-3, 1], [3, 99]])
    inputs, lengths = torch.tensor([6, 6, 6, 6]), torch.tensor([2, 2, 2, 1])
    loss, grad = run(kind, logp, targets, inputs, lengths, zero_infinity=True)
    assert np.isnan(loss).tolist() == [False, True, True, False]
    assert np.isnan(grad).all((0, 2)).tolist() == [False, True, True, False]
    assert np.isfinite(grad[:, [0, 3]]).all()
    beyond, _ = run(kind, logp, targets[:, :1].clamp(1, 4), inputs + 100, torch.tensor([1, -5, 3, 1]))
    within, _ = run(kind, logp, targets[:, :1].clamp(1, 4), inputs, torch.tensor([1, 0, 1, 1]))
    np.testing.assert_array_equal(beyond, within)
