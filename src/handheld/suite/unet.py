"""U-Net (Ronneberger et al., 2015): a class for each pixel. Convolutions are padded, so the output is as large as the
image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.synthetic import Parts, seeded, sgd


def double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1), nn.ReLU()
    )


class UNet(nn.Module):
    """Four levels down and up again. Each level up also gets the features of the same level on the way down."""

    def __init__(self, classes: int, width: int, channels: int = 1, levels: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.downs = nn.ModuleList(double(a, b) for a, b in zip((channels, *widths), widths[:-1], strict=False))
        self.bottom = double(widths[-2], widths[-1])
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in reversed(widths[:-1]))
        self.merges = nn.ModuleList(double(2 * b, b) for b in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.downs:
            kept.append(down(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for up, merge in zip(self.ups, self.merges, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        scores: Tensor = self.head(x)  # [n, classes, size, size]
        return scores


def make(*, seed: int = 0, size: int = 32, classes: int = 2, width: int = 16) -> Parts:
    model = seeded(lambda: UNet(classes, width), seed)
    return model, F.cross_entropy, sgd(model.parameters())


def batch(n: int, seed: int, *, size: int = 32, classes: int = 2, width: int = 16) -> tuple[Tensor, Tensor]:
    """Noise with brighter rectangles: x[n, 1, size, size], and the class of each pixel."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(n, size, size, dtype=torch.int64)
    corners = torch.randint(size - size // 4, (n, classes - 1, 2), generator=generator).tolist()
    for image, places in zip(mask, corners, strict=True):
        for label, (top, left) in enumerate(places, 1):
            image[top : top + size // 4, left : left + size // 4] = label
    noise = torch.randn(n, 1, size, size, generator=generator)
    return 0.5 * noise + mask[:, None], mask
