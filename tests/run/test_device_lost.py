"""A device of this process that fails during a training: the error names the checkpoint, and the training goes on."""

from __future__ import annotations

from pathlib import Path

import pyopencl
import pytest
import torch
from torch.nn import functional as F

import handheld
from handheld.errors import DeviceLost
from handheld.run.loop import Progress


def test_the_error_names_the_checkpoint_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = torch.nn.Linear(12, 3), tmp_path / "run.checkpoint"
    batch = torch.zeros(16, 12), torch.zeros(16, dtype=torch.int64)
    step = handheld.capture(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05), batch)
    data = [batch] * 6

    def fail(*_: object) -> None:
        raise pyopencl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")

    class Breaks:
        def on_step(self, progress: Progress) -> None:
            if progress.step == 3:
                monkeypatch.setattr(trainer.session, "_submit", fail)
                monkeypatch.setattr(trainer.session._memory, "region", fail)

    says = rf"opencl failed while .*OUT_OF_RESOURCES.* epoch 1, batch 2: {path}\. It is intact; resume=True .*goes on"
    with pytest.raises(DeviceLost, match=says), step.copy().plan("opencl").start() as trainer:
        trainer.fit(data, epochs=1, checkpoint=path, every=2, callbacks=[Breaks()])
    with step.copy().plan("opencl").start() as again:
        assert again.fit(data, epochs=1, checkpoint=path, resume=True).steps == len(data)
