"""Shared by the tests of commands: a factory, a Python without torch, and a check of error output."""

from __future__ import annotations

FACTORY = """
import torch
from torch import nn
from torch.nn import functional as F

def make():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

def with_batch():
    return (*make(), (torch.randn(8, 6), torch.zeros(8, dtype=torch.int64)))

def broken():
    raise ValueError("no weights today")

def wrong():
    return make()[0]

class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        if x.mean() > 0:
            return self.line(x)
        return -self.line(x)

def branch():
    model = Branch()
    return (model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.2),
            (torch.ones(8, 6), torch.zeros(8, dtype=torch.int64)))

constant = 3
"""


BLOCK_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def fails(result, *words: str) -> None:
    """Checks a failed command: one line on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == 1, result.output
    assert not result.stdout
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr, result.stderr
