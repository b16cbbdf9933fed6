"""LoRA: train two small matrices beside each frozen layer of a model, then merge them.

python examples/lora.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import handheld


class Lora(nn.Module):
    """A frozen linear layer plus the product of two trained matrices of a low rank."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) * 0.02)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.a.T @ self.b.T

    def merged(self) -> nn.Linear:
        self.layer.weight.data += self.b.data @ self.a.data
        return self.layer


def adapt(model: nn.Module, rank: int) -> None:
    """Replace every linear layer inside the model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Lora(child, rank))


torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
model.load_state_dict(teacher.state_dict())
teacher[0].weight.data += 0.3 * torch.randn(64, 2) @ torch.randn(2, 32)  # the change to learn has rank 2
model.requires_grad_(False)
adapt(model, rank=4)

trained = [p for p in model.parameters() if p.requires_grad]
x = torch.randn(256, 32)
with torch.no_grad():
    y = teacher(x)
step = handheld.capture(model, F.mse_loss, torch.optim.Adam(trained, lr=0.01), (x[:64], y[:64]))
with step.plan("opencl").start() as trainer:
    first = float(trainer.evaluate(x, y)[0])
    for _ in range(200):
        for start in range(0, 256, 64):
            trainer.step(x[start : start + 64], y[start : start + 64])
    last = float(trainer.evaluate(x, y)[0])
step.copy_to(model)
count = sum(p.numel() for p in model.parameters())
print(f"{sum(p.numel() for p in trained):,} of {count:,} parameters trained; loss {first:.4f} to {last:.4f}")
for number, layer in enumerate(model):
    if isinstance(layer, Lora):
        model[number] = layer.merged()
with torch.no_grad():
    print(f"after merging: {F.mse_loss(model(x), y):.4f}")
