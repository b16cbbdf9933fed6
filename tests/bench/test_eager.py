"""PyTorch as a contestant of bench runs the same training as Handheld."""

from __future__ import annotations

import pytest

from handheld.bench.eager import Eager, arithmetic, is_eager, processor
from handheld.bench.row import measured
from handheld.errors import HandheldError
from handheld.resolve import StepFile, open_model

STEPS = 5


def test_rows_name_their_arithmetic():
    assert [arithmetic(name) for name in ("opencl", "pytorch:cuda", "pytorch:cuda:tf32")] == ["float32"] * 2 + ["tf32"]
    assert processor("pytorch:cuda:tf32") == "reference:cuda"
    with pytest.raises(HandheldError, match="only CUDA has TF32"):
        Eager(open_model("m1", "small"), "pytorch:cpu:tf32", 2, 0)


def test_names():
    assert is_eager("pytorch:cuda") and not is_eager("reference:cpu")
    assert [processor(name) for name in ("pytorch:cuda", "pytorch", "opencl:x")] == [
        "reference:cuda",
        "reference:cpu",
        "opencl:x",
    ]


@pytest.mark.parametrize("name", ["m1", "dcgan"])
def test_it_is_the_same_training(name, tmp_path):
    spec = open_model(name, "small")
    made = Eager(spec, "pytorch:cpu", 2, 0)
    with made.profile(
        str(tmp_path / "x.run"), steps=STEPS, seconds=None, progress=lambda *_: None, sensors=False
    ) as run:
        row = measured(run, 2, "pytorch:cpu")
    assert row["steps"] == STEPS and row["samples_s"] > 0 and row["finite"] and row["arithmetic"] == "float32"
    assert "caller" not in row["findings"], "nothing happens between its steps"
    step = spec.step([2], 0)
    runs = spec.runs(spec.example(2))
    with step.plan("reference:cpu", graphs=[graph for graph, _ in runs]).start() as trainer:
        for _ in range(STEPS):
            for graph, share in runs:
                loss = trainer.run(graph, *share)
        assert row["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert made.parameters == sum(
        int(step.values[slot.name].size) for slot in step.slots.values() if slot.role == "parameter"
    )


def test_a_step_file_has_no_model(tmp_path):
    open_model("m1", "small").step([2], 0).save(tmp_path / "m1.step")
    with pytest.raises(HandheldError, match="step file"):
        Eager(StepFile(tmp_path / "m1.step"), "pytorch:cpu", 2, 0)
