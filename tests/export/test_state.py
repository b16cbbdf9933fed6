"""Export of a trained model's state: PyTorch loads it and predicts the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import handheld
from handheld.cli.main import app
from handheld.data import ArrayData

torch = pytest.importorskip("torch")
nn = torch.nn


class Model(nn.Module):
    """Batch norm, an int64 buffer, tied weights, and a buffer that PyTorch does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.out = nn.Linear(6, 3)
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.second(self.first(x)))) * self.scale)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A step file and a checkpoint after two epochs, with inputs and what the device predicts."""
    folder = tmp_path_factory.mktemp("state")
    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
    step = handheld.capture(model, nn.functional.cross_entropy, torch.optim.Adam(model.parameters()), (x[:16], y[:16]))
    with step.plan("reference:cpu").start() as trainer:
        trainer.fit(ArrayData(x, y, batch_size=16), epochs=2, checkpoint=folder / "run.checkpoint")
        predicted = trainer.predict(x[:16])
    step.save(folder / "model.step")
    return folder, step, x[:16], predicted


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)), prog_name="handheld")


def check(state, x, predicted):
    torch.manual_seed(5)
    model = Model()
    assert set(state) == set(model.state_dict())
    assert {n: t.dtype for n, t in state.items()} == {n: t.dtype for n, t in model.state_dict().items()}
    assert str(model.load_state_dict(state)) == "<All keys matched successfully>"
    np.testing.assert_allclose(model.eval()(x).detach().numpy(), predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", ["model.step", "run.checkpoint"])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_pytorch_loads_the_file_and_predicts_the_same(trained, source, suffix):
    folder, _, x, predicted = trained
    out = folder / f"{source}.{suffix}"
    result = run("export", folder / source, "--out", out)
    assert result.exit_code == 0, result.output
    assert "no optimizer state" in result.stdout and "load_state_dict" in result.stdout
    if suffix == "pt":
        state = torch.load(out, weights_only=True)
    else:
        state = pytest.importorskip("safetensors.torch").load_file(out)
    check(state, x, predicted)


def test_state_dict_in_python(trained):
    _, step, x, predicted = trained
    state = step.state_dict()
    check(state, x, predicted)
    assert state["first.weight"] is state["second.weight"]  # tied, as in PyTorch's own state dict
    assert state["norm.num_batches_tracked"].dtype == torch.int64


def test_formats_and_names(trained):
    folder, *_ = trained
    report = json.loads(run("export", folder / "model.step", "--json").stdout)
    assert report["files"] == [str(folder / "model.pt")] and report["tensors"] == 11
    for words, match in (
        (("model.step", "--format", "csv"), "csv is a format for run files. Try one of: pt, safetensors"),
        (("model.step", "--format", "onnx"), "onnx is no format"),
        (("model.step", "--out", folder / "none" / "a.pt"), "there is no folder"),
        (("nothing.step",), "No such file"),
    ):
        result = run("export", folder / words[0], *words[1:])
        assert result.exit_code == 1 and match in result.stderr, result.stderr


def test_a_complex_buffer_is_said_to_be_missing(tmp_path):
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4)
            self.register_buffer("turn", torch.polar(torch.ones(2), torch.arange(2.0)))

        def forward(self, x):
            turned = torch.view_as_complex(self.line(x).reshape(-1, 2, 2)) * self.turn
            return torch.view_as_real(turned).flatten(1)

    model = Rotary()
    step = handheld.capture(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters()), (torch.ones(2, 4),) * 2)
    step.save(tmp_path / "m.step")
    result = run("export", tmp_path / "m.step")
    assert "not in the file, but in the model's state dict: turn. Try: strict=False" in result.stderr
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert set(state) == {"line.weight", "line.bias"}


def test_a_step_file_says_what_made_it(trained):
    folder, *_ = trained
    meta = handheld.load(folder / "model.step").meta
    assert meta["captured"]["torch"] == torch.__version__ and meta["captured"]["handheld"] == handheld.__version__
    assert meta["written"]["handheld"] == handheld.__version__ and meta["written"]["time"].startswith("20")
    shown = run("show", folder / "model.step")
    assert "Model, 81 parameters" in shown.stdout and f"PyTorch {torch.__version__}" in shown.stdout
    assert "not known: the file holds no facts" in shown.stdout
    report = json.loads(run("show", folder / "model.step", "--json").stdout)
    assert (
        report["graphs"]["train"][0] == {"name": "0", "shape": [16, 6], "dtype": "float32"} and report["data"] is None
    )


def test_a_step_can_be_saved_after_its_state_was_loaded(trained, tmp_path):
    _, step, *_ = trained
    with step.copy().plan("reference:cpu").start() as trainer:
        before = trainer.state()
        trainer.load(before)
        after = trainer.state()
        trainer.plan.step.save(tmp_path / "again.step")
    assert {n: a.dtype for n, a in after.items()} == {n: a.dtype for n, a in before.items()}
    assert all(np.array_equal(after[name], before[name]) for name in before)
