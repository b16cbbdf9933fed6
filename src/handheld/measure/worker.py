"""The process in which candidates run, so that a driver that hangs or crashes affects only this process.

It reads one JSON object per line and answers with one:

    {"do": "open", "device": "opencl:0", "graph": {...}}   opens a graph of one node
    {"do": "try", "choice": {...}, "seconds": 0.03}        lowers, builds, runs and checks a variant
                                                           the first time, and times it every time

A variant that crashes the runner of a target is answered with "crashed"; the graph must then be opened again. If the
connection or the target itself is lost, the answer is "lost".

The first choice that runs is the reference for all others; it should be null, the family's default. Output
memory is filled with NaN before a run, so that missing outputs are noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from handheld.backends.base import is_gone
from handheld.backends.opencl import devices as opencl_devices
from handheld.child import Parent
from handheld.errors import DeviceError, HandheldError, TargetLost
from handheld.graph.check import check
from handheld.graph.codec import from_json
from handheld.measure.open_subject import OpenSubject
from handheld.measure.subject import Subject
from handheld.measure.target_subject import TargetSubject
from handheld.targets.names import is_target

if TYPE_CHECKING:
    import pyopencl as cl


class Worker:
    """Keeps the device open from one graph to the next."""

    def __init__(self) -> None:
        self.device = ""
        self.queue: cl.CommandQueue | None = None
        self.programs: dict[str, cl.Program] = {}
        self.subject: Subject | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "open":
            return self._open(request["device"], request["graph"])
        if self.subject is None:
            raise HandheldError("no graph is open")
        return self.subject.attempt(request["choice"], request["seconds"])

    def _open(self, device: str, graph: dict[str, Any]) -> dict[str, Any]:
        if self.subject is not None:
            self.subject.close()
            self.subject = None
        if is_target(device):
            self.device, opened_graph = device, check(from_json(graph))
            try:
                self.subject = TargetSubject(device, opened_graph)
            except DeviceError as error:
                return {"lost": str(error)}
            return {}
        opened = opencl_devices.find(device)
        if self.queue is None or self.device != device:
            api = opencl_devices.opencl()
            self.queue, self.device = api.CommandQueue(api.Context([opened.device])), device
            self.programs.clear()
        self.subject = OpenSubject(opened, self.queue, check(from_json(graph)), self.programs)
        return {}

    def after_loss(self, error: TargetLost) -> dict[str, Any]:
        """A variant is to blame if its runner has ended and the target answers again."""
        self.subject = None
        return {"lost" if is_gone(self.device, error) else "crashed": str(error)}


def main() -> None:
    """Answer requests until standard input ends."""
    parent, worker = Parent(), Worker()
    while (request := parent.receive()) is not None:
        try:
            with parent.reporting():
                reply = worker.answer(request)
        except TargetLost as error:
            reply = worker.after_loss(error)
        except Exception as error:  # Drivers raise their own types of errors; each one is an answer.
            name = "" if isinstance(error, HandheldError) else f"{type(error).__name__}: "
            reply = {"failed": f"{name}{error}"}
        parent.send(reply)


if __name__ == "__main__":
    main()
