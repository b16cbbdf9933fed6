"""LoRA on 4-bit weights: freeze a model, train two small matrices beside each layer, then merge them.

python examples/lora.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import handheld

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
teacher = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
teacher.load_state_dict(model.state_dict())
teacher[0].weight.data += 0.1 * torch.randn(128, 2) @ torch.randn(2, 64)  # the change to learn has rank 2
x = torch.randn(256, 64)
with torch.no_grad():
    y = teacher(x)

handheld.lora(model, rank=4)  # everything else is frozen now
trained = [p for p in model.parameters() if p.requires_grad]
step = handheld.capture(model, F.mse_loss, torch.optim.Adam(trained, lr=0.01), (x[:64], y[:64]))
step = handheld.quantise(step, bits=4)
with step.plan("opencl").start() as trainer:
    first = float(trainer.evaluate(x, y)[0])
    for _ in range(200):
        for start in range(0, 256, 64):
            trainer.step(x[start : start + 64], y[start : start + 64])
    last = float(trainer.evaluate(x, y)[0])
print(
    f"{step.trained_count():,} of {step.parameter_count():,} parameters trained, the others stored in 4 bits; "
    f"loss {first:.4f} to {last:.4f}"
)
step.copy_to(model)  # frozen weights come back as the floats that were computed with
handheld.merge_lora(model)
with torch.no_grad():
    print(f"after merging: {F.mse_loss(model(x), y):.4f}")
