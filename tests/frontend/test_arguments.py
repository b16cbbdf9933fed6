"""Invalid calls raise an error with a clear message before anything is recorded."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.errors import CaptureError, HandheldError

BATCH = (torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "resnet18"}, "the model is a str"),
        ({"model": nn.Linear}, r"the class Linear itself \(write Linear\(\.\.\.\)\)"),
        ({"model": lambda b: b[0].sum()}, "needs modules="),
        ({"model": lambda b: b[0].sum(), "modules": [nn.Linear(3, 2)]}, "dictionary of them, not a list"),
        ({"loss": "mse"}, "the loss is a str"),
        ({"loss": nn.CrossEntropyLoss}, "the class CrossEntropyLoss itself"),
        (
            {"model": lambda b: b[0].sum(), "modules": torch.jit.ScriptModule()},
            "TorchScript modules cannot be captured",
        ),
        ({"loss": lambda y, t: y}, r"it returned a tensor of shape \(4, 2\)"),
        ({"loss": lambda y: y.sum()}, "1 targets, which does not match its arguments"),
        ({"optimizer": "adam"}, "the optimizer is a str"),
        ({"optimizer": torch.optim.SGD}, "the class SGD itself"),
        ({"batch": None}, "it got None"),
        ({"batch": (1, 2)}, "it got a tuple"),
        ({"batch": (torch.ones(0, 3), torch.ones(0))}, "without a sample"),
        ({"inputs": 3}, "from 1 to 2"),
        ({"inputs": "1"}, "from 1 to 2"),
        ({"seed": 2**40}, "32 bits"),
        ({"clip_norm": -1.0}, "clip_norm=-1.0 should be a number above 0"),
        ({"clip_value": "1"}, "clip_value='1' should be a number above 0"),
        ({"accumulate": 0}, "accumulate=0 should be a whole number"),
        ({"accumulate": 2.0}, "accumulate=2.0 should be a whole number"),
        ({"frozen": "no"}, "one of warn, error, accept"),
    ],
)
def test_calls_that_make_no_sense(change, said: str) -> None:
    model = nn.Linear(3, 2)
    given = {
        "model": model,
        "loss": F.cross_entropy,
        "batch": BATCH,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        **change,
    }
    with pytest.raises(CaptureError, match=said):
        handheld.capture(**given)


def test_an_option_that_capture_does_not_have() -> None:
    with pytest.raises(TypeError, match=r"^capture\(\) got an unexpected .* 'clip'"):
        handheld.capture(nn.Linear(3, 2), clip=1)


def test_help_shows_what_capture_takes() -> None:
    assert inspect.isfunction(handheld.capture)
    defaults = {name: p.default for name, p in inspect.signature(handheld.capture).parameters.items()}
    assert defaults == {
        "model": inspect.Parameter.empty,
        "loss": None,
        "optimizer": None,
        "batch": None,
        "modules": None,
        "inputs": 1,
        "evaluate": True,
        "seed": 0,
        "name": "",
        "frozen": "warn",
        "clip_norm": None,
        "clip_value": None,
        "accumulate": 1,
    }
    text = pydoc.render_doc(handheld.capture, renderer=pydoc.plaintext)
    assert all(f"{name}: " in text for name in defaults) and "Captures a training step" in text


def test_nothing_takes_the_place_of_capture() -> None:
    """A module named `handheld.capture` would replace the function as soon as it is imported."""
    package = Path(handheld.__file__).parent
    assert not [*package.glob("capture.py"), *package.glob("capture/*.py")]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.fit([BATCH], epochs="3"), "epochs='3' must be a whole number"),
        (lambda t: t.fit([BATCH], epochs=1, every=0), "every=0 must be"),
        (lambda t: t.fit([BATCH], epochs=1, rate=0.1), "must be a function of the epochs done"),
        (lambda t: t.fit([BATCH], epochs=1, callbacks=[print]), "would never be called"),
        (lambda t: t.fit([BATCH], epochs=1, callbacks=print), "callbacks must be a list"),
        (lambda t: t.fit([BATCH], epochs=1, metrics=["accuracy"]), "metrics must be a dictionary"),
        (lambda t: t.fit([BATCH], epochs=1, checkpoint="."), "cannot be written: it is a folder"),
        (lambda t: t.fit([BATCH], epochs=1, checkpoint="no/x"), "there is no folder no"),
        (lambda t: t.outputs(), "nothing was run yet"),
        (lambda t: t.plan.step.copy_to(None), "takes the module that was captured"),
        (lambda t: t.plan.step.copy_to(nn.Linear(5, 2)), r"weight has shape \(2, 5\) in the module"),
        (lambda t: t.load("run.checkpoint"), "a dictionary of values by name, not a str"),
        (lambda t: t.set_rate("0.1"), "learning rate '0.1' must be a finite number"),
        (lambda t: t.run("tarin", *BATCH), "no graph 'tarin'; it has train"),
    ],
)
def test_calls_of_a_trainer_that_make_no_sense(call, said: str) -> None:
    model = nn.Linear(3, 2)
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), BATCH)
    with step.plan("null").start() as trainer, pytest.raises(HandheldError, match=said):
        call(trainer)


def test_what_a_wrong_batch_raises_is_all_that_is_said(caplog) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="Expected dtype int"):
        handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1), (BATCH[0], torch.ones(4)))
    assert not caplog.records  # PyTorch would log pages about it.


def test_a_compiled_model_is_captured_as_it_was_written() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = [handheld.capture(made, F.cross_entropy, optimizer, BATCH) for made in (model, torch.compile(model))]
    ops = [[(node.op, node.origin.torch_op) for node in step.graphs["train"].nodes] for step in steps]
    assert ops[0] == ops[1]


def test_a_copy_needs_modules_that_fit():
    small, large = nn.Linear(2, 2), nn.Linear(3, 2)
    capture = handheld.Capture({"small": small, "large": large})
    with pytest.raises(
        CaptureError, match=r"weight of the target has shape \(2, 2\), and the source has \(2, 3\).*Try"
    ):
        capture.copy("copy", [(small, large)])
    with pytest.raises(CaptureError, match=r"weight=0 must be a number above 0"):
        capture.copy("copy", [(small, small)], weight=0)
