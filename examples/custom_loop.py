"""Your own loop: a DataLoader, a scheduler, early stopping, and the best weights at the end.

python examples/custom_loop.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

import handheld

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
train, test = random_split(data, [0.8, 0.2])
loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
test_x, test_y = (torch.stack(part) for part in zip(*test, strict=True))

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)

step = handheld.capture(model, F.cross_entropy, optimizer, next(iter(loader)))
best, best_state, patience = float("inf"), {}, 0
with step.plan("opencl").start() as trainer:
    for epoch in range(30):
        for x, y in loader:
            trainer.step(x, y)
        scheduler.step()  # the next step uses the new rate
        loss, _ = trainer.evaluate(test_x, test_y)  # any number of samples
        print(f"epoch {epoch + 1}: test loss {loss:.4f}")
        if float(loss) < best:
            best, best_state, patience = float(loss), trainer.state(), 0
        else:
            patience += 1
        if patience == 5:
            break
    trainer.load(best_state)
    accuracy = (trainer.predict(test_x).argmax(1) == test_y.numpy()).mean()
step.copy_to(model)
print(f"accuracy {accuracy:.1%} with the weights of the best epoch")
