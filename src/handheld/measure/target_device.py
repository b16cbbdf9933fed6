"""Measures a device that a runner serves. Times are taken on the machine of the device: by its host's clock (TIME,
STEPS), and for transfers by the device's own clock. So neither a cable nor a network is part of any result."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from handheld.backends.runner import connect, wire
from handheld.backends.runner.link import Op
from handheld.kernels.base import Arg, Buffer, Float, Int, Launch
from handheld.measure.measurable import LAUNCHES, RUN_SECONDS, RUNS, Launches, Measurable, Transfers, Walk, fastest
from handheld.measure.timing import Measured
from handheld.plan.file_bare import bare_file
from handheld.store.commands import COMMAND, DOWNLOAD, UPLOAD
from handheld.targets.names import parse

NS = 1e-9
MOST_ROUNDS = 2**28
TRANSFER = 16 << 20  # Bytes per transfer: fewer than on this machine, because they also cross the connection.
COPIES = 50  # Transfers of four bytes.


class TargetDevice(Measurable):
    """A device of a target. It keeps one runner until it is closed."""

    def __init__(self, device: str) -> None:
        name = parse(device)
        found = connect.find(name)
        super().__init__(found.caps)
        self.index, self.link = found.index, connect.take(name)

    def close(self) -> None:
        self.link.send(Op.CLOSE)
        connect.give_back(self.link)

    # ── what the runner is asked ──────────────────────────────────────────────────────────────

    def open(self, segments: Sequence[int], graphs: Mapping[str, Sequence[Launch]]) -> None:
        """Opens launches on the device. Memory is zero."""
        wire.open_file(self.link, self.index, self.caps, bare_file(self.caps, segments, graphs))

    def time(self, graph: int, seconds: float = 0.0) -> list[float]:
        """Seconds per run of a graph: several samples in `seconds`, or one."""
        return [float(x) for x in np.frombuffer(self.link.get(Op.TIME, struct.pack("<IId", graph, 0, seconds)), "<f8")]

    def copy(self, bytes: int, times: int) -> dict[int, list[tuple[int, float, float]]]:
        """Copies to segment 0 and back. Returns for UPLOAD and DOWNLOAD, per copy: its bytes, and the seconds by the
        device's clock alone and from the moment at which it was requested."""
        array = np.zeros(bytes, np.uint8)
        rows: dict[int, list[tuple[int, float, float]]] = {UPLOAD: [], DOWNLOAD: []}
        self.link.get(Op.RECORD, struct.pack("<I", 1))
        for _ in range(times):
            wire.write(self.link, 0, 0, array)
            self.link.get(Op.FINISH)
            wire.read(self.link, 0, 0, array).wait()
            recorded = np.frombuffer(self.link.get(Op.RECORDED), COMMAND)
            for kind, copies in rows.items():
                parts = recorded[recorded["kind"] == kind]  # A large copy is made in parts.
                alone = float((parts["ended"] - parts["started"]).sum()) * NS
                whole = float(parts["ended"].max() - parts["queued"].min()) * NS
                copies.append((bytes, max(alone, NS), max(whole, NS)))
        self.link.get(Op.RECORD, struct.pack("<I", 0))
        return rows

    # ── Measurable ────────────────────────────────────────────────────────────────────────────

    def flops_rate(self, options: dict[str, object], items: int, local: int, width: int, per_round: float) -> Measured:
        text = self.source(**options)
        launches = {
            rounds: Launch("flops", text, (Buffer(0), Float(0.5), Float(0.5), Int(rounds)), (items,), (local,))
            for rounds in _rounds(1)
        }
        return self._rate([4 * items * width], launches, per_round)

    def walk_rate(self, walk: Walk) -> Measured:
        text, launches = self.source(T=f"float{self.vector}"), dict[int, Launch]()
        for rounds in [walk.least] if walk.apart else _rounds(walk.least):
            numbers = (Int(number) for number in (*walk.numbers, rounds))
            args: tuple[Arg, ...] = (Buffer(0), Buffer(1), *numbers)
            launches[rounds] = Launch(walk.kernel, text, args, (walk.items,), (self.local,))
        return self._rate([walk.of_x, walk.of_y], launches, walk.per_round)

    def _rate(self, segments: Sequence[int], launches: Mapping[int, Launch], per_round: float) -> Measured:
        """Units per second of the first launch that is long enough to time, or of the last one, repeated."""
        self.open(segments, {str(rounds): [launch] for rounds, launch in launches.items()})
        self.time(0)  # Drivers compile at the first launch.
        graph, each = 0, list(launches)
        while (once := min(self.time(graph)[0], self.time(graph)[0])) < RUN_SECONDS and graph + 1 < len(each):
            graph += 1
        samples = self.time(graph, RUNS * max(once, RUN_SECONDS))
        return fastest([per_round * each[graph] / seconds for seconds in samples])

    def open_bytes(self, bytes: int) -> None:
        """Opens memory to copy to and from."""
        self.open([bytes], {"nothing": [self._nothing()]})

    def transfers(self) -> Transfers:
        nbytes = min(TRANSFER, self.caps.max_alloc_bytes // 4)
        self.open_bytes(nbytes)
        large = self.copy(nbytes, RUNS)
        small = self.copy(4, COPIES)
        results = []
        for kind in (UPLOAD, DOWNLOAD):
            results.append(Measured.of([bytes / alone for bytes, alone, _ in large[kind]]))
            results.append(Measured.of([whole for _, _, whole in small[kind]]))
        return results[0], results[1], results[2], results[3]

    def launches(self) -> Launches:
        nothing = self._nothing()
        self.open([4], {"one": [nothing], "many": [nothing] * LAUNCHES})
        self.time(1)
        self.link.get(Op.STEPS)
        for _ in range(RUNS):
            self.link.send(Op.RUN, struct.pack("<I", 1))
            self.link.get(Op.FINISH)
        steps = np.frombuffer(self.link.get(Op.STEPS), "<i8").reshape(-1, 2)
        enqueue = [float(end - begin) * NS / LAUNCHES for begin, end in steps]
        after = [seconds / LAUNCHES for seconds in self.time(1, RUNS * 1e-3)]
        alone = [self.time(0)[0] for _ in range(COPIES)]
        return Measured.of(enqueue), Measured.of(after), Measured.of(alone)

    def _nothing(self) -> Launch:
        return Launch("nothing", self.source(T="float"), (Buffer(0),), (1,), (1,))


def _rounds(least: int) -> list[int]:
    """Numbers of rounds to try, each four times the one before."""
    rounds = [least]
    while rounds[-1] * 4 <= MOST_ROUNDS:
        rounds.append(rounds[-1] * 4)
    return rounds
