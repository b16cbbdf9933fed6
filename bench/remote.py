"""Runs a peer in its own process, so that its threads, environment and crashes do not affect the others.

`Remote` asks the process for turns and receives their times. A peer (`peer_*.py`) has a function
`make(walk, batch, rate, momentum, threads)`. It is timed only if its losses equal PyTorch's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from translate import NotWritten, Walk
from workloads import Entry, single

FIRST, LATER = 1e-4, 0.25  # allowed error of the first loss; of the third, as a share of the fall until then


@dataclass(frozen=True)
class Peer:
    """A peer's package. `environment` holds variables that it reads at import; {threads} is filled in."""

    package: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None


PEERS = {
    # Without NPROC, XLA's thread pool is as large as the machine.
    "jax": Peer("jax", {"NPROC": "{threads}"}),
    "tinygrad": Peer("tinygrad", {"DEV": "CL", "NUM_CPU_THREADS": "{threads}"}),
    "mnn": Peer("MNN"),
}


class Failed(Exception):
    """A peer cannot be compared; the message says why."""


class Remote:
    """The parent's side of a peer's process. It waits at most `patience` seconds for each answer."""

    def __init__(self, name: str, entry: Entry, threads: int, kind: str, patience: float) -> None:
        self.name, self.patience = name, patience
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.errors = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115
        self.process = context.Process(target=serve, args=(theirs, name, entry, threads, self.errors.name), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.what, where = self.answer()
            if kind == "gpu" and where == "cpu":
                raise Failed(f"{self.what} runs on the CPU here, but the device is a GPU")
        except BaseException:
            self.close()
            raise

    def answer(self) -> Any:
        try:
            if not self.pipe.poll(self.patience):
                raise Failed(f"no answer in {self.patience:.0f} s. Try: a larger --patience")
            answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            raise Failed(
                f"its process ended with {self.process.exitcode}: {self.errors.read()[-400:].strip()}"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def turn(self, steps: int) -> float:
        """Seconds that `steps` steps took."""
        self.pipe.send(steps)
        return float(self.answer())

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.errors.close()


def serve(pipe: Any, name: str, entry: Entry, threads: int, errors: str) -> None:
    """The peer's process: sends its name once its losses equal PyTorch's, then one time per requested turn."""
    with open(errors, "w") as file:
        os.dup2(file.fileno(), 2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    for key, value in PEERS[name].environment.items():
        os.environ.setdefault(key, value.format(threads=threads))
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            turn, what, where = started(name, entry, threads)
        except (NotWritten, Failed) as error:
            pipe.send(error)
            return
        except Exception as error:
            traceback.print_exc()
            pipe.send(Failed(f"{type(error).__name__}: {error}"))
            return
        pipe.send((what, where))
        while True:
            steps = pipe.recv()
            begin = time.perf_counter()
            turn(steps)
            pipe.send(time.perf_counter() - begin)


def started(name: str, entry: Entry, threads: int) -> Any:
    """The peer's step, after its first three losses without dropout were compared with PyTorch's."""
    import torch

    torch.set_num_threads(threads)
    if entry.workload == "dcgan":
        raise NotWritten("two updates")
    model, loss, optimizer, batch = single(entry)
    group = optimizer.param_groups[0]
    hyper = (group["lr"], group["momentum"], threads)
    peer = importlib.import_module(f"peer_{name}")
    drops = {m: m.p for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p}
    timed, checked = Walk(model), Walk(model, dropout=False)
    made = peer.make(checked, batch, *hyper)
    got = [made[0](1) for _ in range(3)]
    for drop in drops:
        drop.p = 0.0
    want = []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        want.append(float(value.detach()))
    if not abs(got[0] - want[0]) <= FIRST * abs(want[0]):
        raise Failed(f"its first loss is {got[0]:.6f}; PyTorch's is {want[0]:.6f}")
    if not abs(got[2] - want[2]) <= LATER * abs(want[0] - want[2]):
        raise Failed(f"its losses are {got}; PyTorch's are {want}")
    for drop, p in drops.items():
        drop.p = p
    return peer.make(timed, batch, *hyper) if drops else made
