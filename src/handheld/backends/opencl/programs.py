"""Builds the programs of a plan.

Each program of the plan (plan/texts.py) is built once, several at the same time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from handheld.backends.opencl.devices import find, opencl
from handheld.errors import BuildError
from handheld.plan.quirks import build_threads
from handheld.plan.texts import ProgramText, program_texts
from handheld.progress import Progress, listener

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.kernels.base import Launch
    from handheld.plan.plan import Plan


def build(context: cl.Context, text: str) -> cl.Program:
    """Builds a program without the compiler's warnings, which do not help the user."""
    program: cl.Program = opencl().Program(context, text).build(options=["-w"])
    return program


class Kept:
    """A context and the programs built in it, for code that starts many plans with the same programs."""

    def __init__(self, device: str) -> None:
        self.context: cl.Context = opencl().Context([find(device).device])
        self.programs: dict[str, cl.Program] = {}


class _Built(NamedTuple):
    """The program that contains a text."""

    program: cl.Program
    source: ProgramText


def _hold_signals() -> None:
    """Installs Python's handlers of Ctrl-C and SIGTERM again: LLVM, inside PoCL, replaces them while it builds, and its
    own end the process at once."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, handler)


class _Count:
    """Reports how many programs are built. The threads that build them call it."""

    def __init__(self, total: int, to: Progress | None) -> None:
        self._done, self._total, self._to = 0, total, to
        self._lock = threading.Lock()
        if to is not None and total:
            to("building", 0, total)

    def __call__(self, building: Future[dict[str, _Built]]) -> None:
        if self._to is None or building.cancelled():
            return
        with self._lock:
            self._done += 1
            self._to("building", self._done, self._total)


class Programs:
    """The programs of a plan, built in the background. Those that `before` built in the same context are used again."""

    def __init__(
        self, plan: Plan, context: cl.Context, kept: Kept | None = None, before: Programs | None = None
    ) -> None:
        self._device, self._context, self._kept = plan.device, context, kept
        self._most_threads = build_threads(plan.caps)
        old = {} if before is None else before._built()
        known = {} if before is None else {text: before._texts[text] for text in old}
        merged = kept is None  # Those that are kept serve other plans too, which merge other texts.
        texts = program_texts(plan, merged, known)
        self._programs = texts.programs
        self._texts: dict[str, str] = texts.compiled
        #: Text -> the program that already contains it.
        self._ready = {text: old[text] for text in self._texts if text in old and known[text] == self._texts[text]}
        self._building: dict[str, Future[dict[str, _Built]]] = {}
        self._turns: dict[str, int] = {}

    @contextlib.contextmanager
    def building(self, threads: int | None) -> Iterator[None]:
        """Builds programs in the background. Inside the `with` block, `kernel` waits for a single program."""
        threads = threads or self._most_threads
        with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
            count = _Count(len(self._programs), listener())
            try:
                for source in self._programs:
                    building = pool.submit(self._build, source)
                    building.add_done_callback(count)
                    self._building.update(dict.fromkeys(source.members, building))
                self._turns = {text: n for n, text in enumerate(self._building)}
                if threads == 1:  # Then nothing may run at the same time: Oclgrind would crash.
                    wait(self._building.values())
                yield
            except BaseException:  # After Ctrl-C or a failed build, the programs that wait need not be built.
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    @property
    def sources(self) -> list[ProgramText]:
        """The programs that are not built yet. Programs that several plans share are not among them."""
        return self._programs if self._kept is None else []

    def turn(self, launch: Launch) -> int:
        """Returns the position of a launch's program in the build order."""
        return self._turns.get(launch.text, -1)

    def kernel(self, launch: Launch) -> cl.Kernel:
        """Waits for the program of a launch and returns its kernel."""
        ready = self._ready.get(launch.text)
        program, source = ready or self._building[launch.text].result()[launch.text]
        _hold_signals()
        name = source.kernel(launch)
        api = opencl()
        try:
            kernel: cl.Kernel = api.Kernel(program, name)
        except api.Error as error:
            raise BuildError(
                f"{self._device} built a program without kernel {name}: {error}. "
                "The driver's cache may be damaged. Try: empty that cache"
            ) from None
        return kernel

    def __len__(self) -> int:
        """Returns the number of programs that were built."""
        return len({id(future.result()[text].program) for text, future in self._building.items()})

    def _built(self) -> dict[str, _Built]:
        return {**self._ready, **{text: future.result()[text] for text, future in self._building.items()}}

    def _build(self, source: ProgramText) -> dict[str, _Built]:
        if len(source.members) == 1:
            return self._build_one(source)
        try:
            whole = self._program(source.text)
            return {text: _Built(whole, source) for text in source.members}
        except opencl().Error as error:  # Building them separately shows whether a single text is at fault.
            problem = str(error)[:1000]
        built: dict[str, _Built] = {}
        for single in source.separate():
            built |= self._build_one(single)
        warnings.warn(
            f"programs built separately: {self._device} could not build {len(built)} programs as one. This takes "
            f"longer but does not change results: {problem}",
            stacklevel=2,
        )
        return built

    def _build_one(self, source: ProgramText) -> dict[str, _Built]:
        ((text, launch),) = source.launches.items()
        try:
            return {text: _Built(self._program(source.text), source)}
        except opencl().Error as error:
            raise BuildError(
                f"{self._device} could not build kernel {launch.kernel}:\n{error}\n--- source ---\n{source.text}"
            ) from None

    def _program(self, text: str) -> cl.Program:
        if self._kept is None:
            return build(self._context, text)
        if text not in self._kept.programs:
            self._kept.programs[text] = build(self._context, text)
        return self._kept.programs[text]
