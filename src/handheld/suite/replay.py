"""What DQN plays and stores: a game of catch and a ring buffer of moves. It needs only NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.uint8]
Move = tuple[Frames, int, float, Frames, bool]
CELLS = 12  # Width and height of the game's field in cells.


class Catch:
    """A ball falls, and a paddle moves left, stays or moves right (0, 1, 2).

    The reward is 1 if the paddle catches the ball, else -1. Frames look as DQN sees Atari games: the last four
    frames in gray.
    """

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self.size, self.random = size, random
        self._start()

    def _start(self) -> None:
        self.ball, self.fallen = int(self.random.integers(CELLS)), 0
        self.paddle = int(self.random.integers(1, CELLS - 1))
        self.frames = np.repeat(self._draw()[None], 4, 0)

    def _draw(self) -> Frames:
        frame = np.zeros((self.size, self.size), np.uint8)
        edges = [i * self.size // CELLS for i in range(CELLS + 1)]
        frame[edges[self.fallen] : edges[self.fallen + 1], edges[self.ball] : edges[self.ball + 1]] = 255
        frame[edges[-2] :, edges[self.paddle - 1] : edges[self.paddle + 2]] = 160
        return frame

    def move(self, move: int) -> Move:
        """Make one move. Returns (frames before, move, reward, frames after, whether the game ended)."""
        before = self.frames
        self.paddle = min(max(self.paddle + move - 1, 1), CELLS - 2)
        self.fallen += 1
        over = self.fallen == CELLS - 1
        self.frames = np.concatenate([before[1:], self._draw()[None]])
        reward = (1.0 if abs(self.ball - self.paddle) <= 1 else -1.0) if over else 0.0
        moved = (before, move, reward, self.frames, over)
        if over:
            self._start()
        return moved


class Replay:
    """The last `room` moves."""

    def __init__(self, room: int, size: int) -> None:
        self.room, self.seen = room, 0
        self.before = np.zeros((room, 4, size, size), np.uint8)
        self.after = np.zeros_like(self.before)
        self.moves = np.zeros(room, np.int64)
        self.rewards, self.over = np.zeros(room, np.float32), np.zeros(room, np.float32)

    def __len__(self) -> int:
        return min(self.seen, self.room)

    def add(self, before: Frames, move: int, reward: float, after: Frames, over: bool) -> None:
        at = self.seen % self.room
        self.before[at], self.moves[at], self.rewards[at] = before, move, reward
        self.after[at], self.over[at] = after, over
        self.seen += 1

    def sample(self, n: int, random: np.random.Generator) -> tuple[npt.NDArray[np.generic], ...]:
        """`n` moves, drawn with replacement, with frames in [0, 1]."""
        at = random.integers(len(self), size=n)
        before, after = (frames[at].astype(np.float32) / np.float32(255) for frames in (self.before, self.after))
        return before, self.moves[at], self.rewards[at], after, self.over[at]
