"""The programs of a plan: each distinct text is built once, several at a time; on a CPU the texts of a family are one
program (merge.py), with the vectors of the processor (widen.py)."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from handheld.backends.opencl.devices import find, opencl
from handheld.backends.opencl.merge import merge, renamed
from handheld.backends.opencl.quiet import without_counts
from handheld.backends.opencl.widen import texts_of
from handheld.errors import BuildError
from handheld.plan.lowering import family

if TYPE_CHECKING:
    import pyopencl as cl

    from handheld.kernels.base import Launch
    from handheld.plan.plan import Plan


def build(context: cl.Context, text: str) -> cl.Program:
    """A program as drivers build it for us: their warnings are not the user's."""
    program: cl.Program = opencl().Program(context, text).build(options=["-w"])
    return program


class Kept:
    """A context and what was built in it, for those who start many plans that share programs."""

    def __init__(self, device: str) -> None:
        self.context: cl.Context = opencl().Context([find(device).device])
        self.programs: dict[str, cl.Program] = {}


class _Built(NamedTuple):
    """The program that a text is in, and its number there if it is not alone."""

    program: cl.Program
    number: int | None


class Programs:
    """The programs of a plan, being built. `merged`: those of a family are one."""

    def __init__(self, plan: Plan, context: cl.Context, kept: Kept | None) -> None:
        self._device, self._context, self._kept = plan.device, context, kept
        merged = plan.caps.kind == "cpu" and kept is None  # compilers for CPUs take longer for many
        #: family -> text -> the first launch that has it
        self._families: dict[str, dict[str, Launch]] = {}
        launches = []
        for graph in plan.graphs.values():
            for node, lowered in zip(graph.graph.nodes, graph.lowered, strict=True):
                for launch in lowered.launches:
                    launches.append(launch)
                    whose = family(node.op) if merged else launch.text
                    self._families.setdefault(whose, {}).setdefault(launch.text, launch)
        self._texts = texts_of(launches, plan.caps)
        self._building: dict[str, Future[dict[str, _Built]]] = {}
        self._turns: dict[str, int] = {}

    @contextlib.contextmanager
    def building(self, threads: int | None) -> Iterator[None]:
        """Builds in the background; kernels are made inside, each as soon as its program is there."""
        with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
            for texts in self._families.values():
                self._building.update(dict.fromkeys(texts, pool.submit(self._build_family, texts)))
            self._turns = {text: n for n, text in enumerate(self._building)}
            if threads == 1:  # nothing at the same time: Oclgrind falls over
                wait(self._building.values())
            yield

    def turn(self, launch: Launch) -> int:
        """Launches with a smaller one have their program sooner."""
        return self._turns[launch.text]

    def kernel(self, launch: Launch) -> cl.Kernel:
        """Waits for the launch's program."""
        program, number = self._building[launch.text].result()[launch.text]
        name = launch.kernel if number is None else renamed(launch.kernel, number)
        api = opencl()
        try:
            kernel: cl.Kernel = api.Kernel(program, name)
        except api.Error as error:
            raise BuildError(
                f"{self._device} built a program without kernel {name}: {error}. "
                "A damaged cache of the driver can do that; try emptying it"
            ) from None
        return kernel

    def __len__(self) -> int:
        """Programs that were built."""
        return len({id(future.result()[text].program) for text, future in self._building.items()})

    def _build_family(self, first: Mapping[str, Launch]) -> dict[str, _Built]:
        texts = sorted(first)  # whatever the order of launches, the program is the same
        if len(texts) == 1:
            return {texts[0]: _Built(self._build_one(first[texts[0]]), None)}
        try:
            with without_counts():
                whole = self._program(merge([self._texts[text] for text in texts]))
            return {text: _Built(whole, i) for i, text in enumerate(texts)}
        except opencl().Error as error:  # is it one of them, or their being together?
            problem = str(error)[:1000]
        built = {text: _Built(self._build_one(first[text]), None) for text in texts}
        warnings.warn(
            f"programs built apart: {self._device} did not build {len(texts)} programs as one, which takes "
            f"longer and changes no result: {problem}",
            stacklevel=2,
        )
        return built

    def _build_one(self, launch: Launch) -> cl.Program:
        text = self._texts[launch.text]
        try:
            return self._program(text)
        except opencl().Error as error:
            raise BuildError(
                f"{self._device} could not build kernel {launch.kernel}:\n{error}\n--- source ---\n{text}"
            ) from None

    def _program(self, text: str) -> cl.Program:
        if self._kept is None:
            return build(self._context, text)
        if text not in self._kept.programs:
            self._kept.programs[text] = build(self._context, text)
        return self._kept.programs[text]
