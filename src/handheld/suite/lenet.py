"""LeNet-5 (LeCun et al., 1998) in today's form: ReLU and max pooling, 61,706 parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, images, seeded, sgd


class LeNet5(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [n, 6, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [n, 16, 5, 5]
        x = F.relu(self.fc1(x.flatten(1)))
        scores: Tensor = self.fc3(F.relu(self.fc2(x)))
        return scores


def make(*, seed: int = 0, classes: int = 10) -> Parts:
    model = seeded(lambda: LeNet5(classes), seed)
    return model, F.cross_entropy, sgd(model.parameters(), 0.02)


def batch(n: int, seed: int, *, classes: int = 10) -> tuple[Tensor, Tensor]:
    return images(n, seed, (1, 28, 28), classes)
