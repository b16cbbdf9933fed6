"""Checkpoint and resume: the resumed training gives the same bits as one that was never stopped.

python examples/resume.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import handheld
from handheld.data import load_data


def train(checkpoint: Path, epochs: int, resume: bool) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    digits = load_data("digits", batch_size=64)
    step = handheld.capture(model, F.cross_entropy, optimizer, next(iter(digits.train)))
    with step.plan("opencl").start() as trainer:
        history = trainer.fit(digits.train, epochs=epochs, test=digits.test, checkpoint=checkpoint, resume=resume)
    print(f"{len(history.epochs)} epochs, test accuracy {history.test['accuracy']:.1%}")
    return step.state()


with tempfile.TemporaryDirectory() as folder:
    whole = train(Path(folder) / "whole", epochs=4, resume=False)
    train(Path(folder) / "parts", epochs=2, resume=False)
    parts = train(Path(folder) / "parts", epochs=4, resume=True)
print("same bits:", all(np.array_equal(whole[name], parts[name]) for name in whole))
