"""One name per device: `reference:cpu`. The old `torch:cpu` is accepted, and old files that say it mean the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import handheld
from handheld import bench
from handheld.backends.base import describe
from handheld.bench.matrix import Matrix
from handheld.device import DeviceCaps, canonical, is_gpu
from handheld.errors import DeviceError
from handheld.plan.codec import from_json
from handheld.step import Step
from handheld.store.reader import RunFile
from handheld.store.writer import RunWriter
from handheld.studies import das2022, liu2019
from helpers.bench_rows import CAPS, folder, row


@pytest.fixture
def step() -> Step:
    model = nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return handheld.capture(model, nn.MSELoss(), sgd, (torch.randn(4, 3), torch.randn(4, 2)))


def test_the_old_name_is_today_s_device():
    for old, new in (("torch:cpu", "reference:cpu"), ("torch:cuda", "reference:cuda"), ("torch", "reference")):
        assert canonical(old) == canonical(new) == new
    for same in ("opencl", "opencl:torch:cpu", "pytorch:cpu", "null"):
        assert canonical(same) == same
    assert describe("torch:cpu").kind == describe("reference:cpu").kind == "reference"
    for wrong in ("torch:phone", "reference:phone"):
        with pytest.raises(DeviceError, match=r"unknown device 'reference:phone'.* reference:cpu or reference:cuda"):
            describe(wrong)
    with pytest.raises(DeviceError, match=r"reference:cpu, reference:cuda, runner\[:name\], ssh:.*, adb.* and null"):
        describe("tensor:cpu")
    with pytest.raises(DeviceError, match=r"only handheld bench runs\. Try: reference:cuda"):
        describe("pytorch:cuda")


def test_a_gpu_is_one_under_either_name_and_under_plain_pytorch():
    assert all(is_gpu(name, None) for name in ("torch:cuda", "reference:cuda", "pytorch:cuda"))
    assert is_gpu("opencl", "gpu") and not is_gpu("opencl", "cpu") and not is_gpu("pytorch:cpu", "pytorch")


def test_a_plan_under_the_old_name(step):
    plan = step.plan("torch:cpu")
    assert plan.device == "reference:cpu" and plan.caps.kind == "reference"
    data = plan.to_json()
    assert data["device"] == "reference:cpu"
    old = {**data, "device": "torch:cpu", "caps": {**data["caps"], "kind": "torch"}}
    read = from_json(json.loads(json.dumps(old)), step)
    assert read.device == "reference:cpu" and read.caps == plan.caps
    with read.start() as trainer:
        assert np.isfinite(float(trainer.step(np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32))))


def test_a_description_of_the_old_kind():
    data = describe("reference:cpu").to_json()
    assert DeviceCaps.from_json({**data, "kind": "torch"}) == DeviceCaps.from_json(data)


@pytest.mark.parametrize(
    ("settings", "device", "kind"), [({}, "reference:cuda", "reference"), ({"watch": True}, "pytorch:cuda", "pytorch")]
)
def test_a_run_file_of_before(tmp_path, settings, device, kind):
    """In old run files the reference and plain PyTorch had the same name."""
    writer = RunWriter(tmp_path / "old.run")
    writer.meta(device="torch:cuda", caps={"name": "a GPU", "kind": "torch"}, settings=settings)
    writer.close()
    meta = RunFile(tmp_path / "old.run").meta
    assert meta["device"] == device and meta["caps"] == {"name": "a GPU", "kind": kind}


def test_a_results_folder_of_before(tmp_path):
    caps = {**CAPS, "kind": "torch"}
    case = {"workload": "mlp", "size": "small", "device": "torch:cpu", "batch": 4}
    split = "torch:cpu (AMD/9)"  # --merge writes this for processors with two names.
    old = folder(
        tmp_path / "old",
        [row(device="torch:cpu"), row(device=split)],
        devices={"torch:cpu": caps, split: caps},
        cases=[case],
    )
    assert [one["device"] for one in old.rows] == ["reference:cpu", "reference:cpu (AMD/9)"]
    assert [one["key"] for one in old.rows] == ["mlp/small/4/reference:cpu", "mlp/small/4/reference:cpu (AMD/9)"]
    assert old.info["cases"] == [{**case, "device": "reference:cpu"}]
    assert old.info["devices"]["reference:cpu"]["kind"] == "reference"
    new = folder(tmp_path / "new", [row(device="reference:cpu")], devices={"reference:cpu": CAPS})
    line = bench.compare(old, new)["rows"][0]
    assert line["a"] and line["b"], "one key on both sides"
    assert liu2019.result(tmp_path / "old", "torch:cpu")["device"] == "reference:cpu"
    keys = [{case.key for case in Matrix(("mlp",), (name,), (4,)).cases()} for name in ("torch:cpu", "reference:cpu")]
    assert keys == [{"mlp/small/4/reference:cpu"}] * 2


def test_study_results_of_before(tmp_path):
    path = tmp_path / das2022.RESULT
    models = {"m1": {"ways": {"pytorch": {"step": 1}, "torch:cpu": {"step": 2}}}}
    sweep = [{"width": 16, "ways": {"torch:cpu": {"step": 3}}}]
    path.write_text(
        json.dumps({"handheld": das2022.FORMAT, "version": das2022.VERSION, "models": models, "sweep": sweep})
    )
    read = das2022.read(path)
    assert read["models"]["m1"]["ways"] == {"pytorch": {"step": 1}, "reference:cpu": {"step": 2}}
    assert read["sweep"] == [{"width": 16, "ways": {"reference:cpu": {"step": 3}}}]
    path = tmp_path / liu2019.RESULT
    path.write_text(json.dumps({"format": liu2019.FORMAT, "version": liu2019.VERSION, "device": "torch:cpu"}))
    assert liu2019.load(path)["device"] == "reference:cpu"
