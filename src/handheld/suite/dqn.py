"""DQN (Mnih et al., 2015): a network that estimates the value of each move of a game from the last four frames.

Graph "learn" takes a batch of stored moves and updates the network towards the values that a second network, the
target network, gives to the frames after each move. "copy" copies the network into the target network. "predict"
returns the values of the moves for given frames. `play` trains with all three, from the memory in replay.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from handheld.suite.replay import Catch, Replay
from handheld.suite.synthetic import seeded
from handheld.suite.workload import Modules, Update, record_updates

if TYPE_CHECKING:
    from handheld.frontend.capture import Capture

DISCOUNT = 0.99


class Dqn(nn.Module):
    """frames[n, 4, size, size] in [0, 1] -> the value of each move, [n, moves]."""

    def __init__(self, size: int, width: int, moves: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, width, 8, 4)
        self.conv2 = nn.Conv2d(width, 2 * width, 4, 2)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3)
        side = ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2
        self.fc1 = nn.Linear(2 * width * side * side, 16 * width)
        self.fc2 = nn.Linear(16 * width, moves)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))
        values: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return values


def td_loss(modules: Modules, batch: tuple[Tensor, ...]) -> Tensor:
    """How far the value of a move is from its reward plus the target network's best value of the next frames."""
    frames, moves, rewards, after, over = batch
    with torch.no_grad():
        goal = rewards + DISCOUNT * (1 - over) * modules["target"](after).amax(1)
    value = modules["online"](frames).gather(1, moves[:, None])[:, 0]
    return F.smooth_l1_loss(value, goal)


UPDATES = (
    Update(
        "learn",
        td_loss,
        lambda m: torch.optim.RMSprop(m["online"].parameters(), lr=2.5e-4, alpha=0.95, eps=1e-5),
        (0, 1, 2, 3, 4),
    ),
)


def modules(seed: int, *, size: int = 84, width: int = 32, moves: int = 3) -> Modules:
    online, target = seeded(lambda: (Dqn(size, width, moves), Dqn(size, width, moves)), seed)
    target.load_state_dict(online.state_dict())
    return {"online": online, "target": target.requires_grad_(False)}


def record(n: int, seed: int, *, size: int = 84, width: int = 32, moves: int = 3) -> Capture:
    parts = modules(seed, size=size, width=width, moves=moves)
    example = batch(n, seed, size=size, width=width, moves=moves)
    capture = record_updates(parts, UPDATES, example, seed)
    capture.copy("copy", [(parts["target"], parts["online"])])
    return capture.evaluate(lambda b: (None, parts["online"](b[0])), (example[0][:1],), "predict")


def batch(n: int, seed: int, *, size: int = 84, width: int = 32, moves: int = 3) -> tuple[Tensor, ...]:
    """(frames, moves, rewards, next frames, whether the game ended) from a game with random moves."""
    random = np.random.default_rng(seed)
    game, memory = Catch(size, random), Replay(max(4 * n, 64), size)
    while len(memory) < memory.room:
        memory.add(*game.move(int(random.integers(min(moves, 3)))))
    return tuple(torch.from_numpy(part) for part in memory.sample(n, random))


def play(
    trainer: Any,
    n: int,
    steps: int,
    *,
    size: int,
    seed: int = 0,
    copy_every: int = 100,
    explore: float = 1.0,
    room: int = 4000,
) -> list[float]:
    """Train a started plan by playing: one move, then one update, `steps` times.

    The share of random moves falls from `explore` to a tenth of it. Returns the reward at the end of each game.
    """
    random = np.random.default_rng(seed)
    game, memory, rewards = Catch(size, random), Replay(room, size), []
    while len(memory) < n:
        memory.add(*game.move(int(random.integers(3))))
    for step in range(steps):
        if random.random() < explore * max(1 - step / steps, 0.1):
            move = int(random.integers(3))
        else:
            trainer.run("predict", game.frames[None].astype(np.float32) / 255)
            move = int(np.argmax(trainer.outputs()["output"][0, :3]))
        moved = game.move(move)
        memory.add(*moved)
        if moved[-1]:
            rewards.append(moved[2])
        trainer.run("learn", *memory.sample(n, random))
        if step % copy_every == copy_every - 1:
            trainer.run("copy")
    return rewards
