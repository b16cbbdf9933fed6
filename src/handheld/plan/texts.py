"""The program texts of a plan, as the compiler of the device gets them.

Each distinct text of the launches is compiled once. On a CPU the texts of a kernel family become one program or a few
(merge.py), because each build is slow, and ask for all vectors of the processor (widen.py). Backends and plan files
both take the texts from here, so they build the same programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from handheld.plan.lowering import family
from handheld.plan.merge import merge, renamed
from handheld.plan.widen import texts_of

if TYPE_CHECKING:
    from handheld.kernels.base import Launch
    from handheld.plan.plan import Plan


#: Families with longer texts become several programs, which other processes can build (backends/opencl/ahead.py).
MOST_CHARACTERS = 200_000


class ProgramText:
    """One program: the texts of launches that are compiled together."""

    def __init__(self, launches: Mapping[str, Launch], compiled: Mapping[str, str]) -> None:
        #: The texts of the launches. Their order is sorted, so the program does not depend on the order of launches.
        self.members = tuple(sorted(launches))
        #: The first launch with each text, for messages.
        self.launches = {text: launches[text] for text in self.members}
        self._compiled = [compiled[text] for text in self.members]
        self._numbers = {text: i for i, text in enumerate(self.members)}

    @cached_property
    def text(self) -> str:
        """The text to compile."""
        return self._compiled[0] if len(self._compiled) == 1 else merge(self._compiled)

    def kernel(self, launch: Launch) -> str:
        """Returns the name of a launch's kernel in this program."""
        alone = len(self.members) == 1
        return launch.kernel if alone else renamed(launch.kernel, self._numbers[launch.text])

    def separate(self) -> list[ProgramText]:
        """Returns one program per member, for a compiler that cannot build them as one."""
        return [
            ProgramText({text: self.launches[text]}, {text: compiled})
            for text, compiled in zip(self.members, self._compiled, strict=True)
        ]


class ProgramTexts(NamedTuple):
    """The programs of a plan, and the text to compile for each text of its launches."""

    programs: list[ProgramText]
    compiled: dict[str, str]


def program_texts(plan: Plan, merged: bool = True, known: Mapping[str, str] | None = None) -> ProgramTexts:
    """Returns the programs of a plan, in the order of its launches.

    With `merged`, a family is one program on a CPU, or several if its texts are long. The caller has the programs of
    the texts in `known` (text -> the text that was compiled for it): they are left out if this plan needs the same.
    """
    merged = merged and plan.caps.kind == "cpu"
    groups: dict[str, dict[str, Launch]] = {}
    launches = []
    for graph in plan.graphs.values():
        for node, lowered in zip(graph.graph.nodes, graph.lowered, strict=True):
            for launch in lowered.launches:
                launches.append(launch)
                group = family(node.op) if merged else launch.text
                groups.setdefault(group, {}).setdefault(launch.text, launch)
    compiled = texts_of(launches, plan.caps)
    ready = {text for text, before in (known or {}).items() if compiled.get(text) == before}
    rest = [{text: launch for text, launch in texts.items() if text not in ready} for texts in groups.values()]
    parts = [part for texts in rest if texts for part in _parts(texts, compiled)]
    return ProgramTexts([ProgramText(texts, compiled) for texts in parts], compiled)


def _parts(texts: Mapping[str, Launch], compiled: Mapping[str, str]) -> list[dict[str, Launch]]:
    """Cuts the texts of a family into parts of about the same length."""
    length = sum(len(compiled[text]) for text in texts)
    count = max(-(-length // MOST_CHARACTERS), 1)
    parts: list[dict[str, Launch]] = [{} for _ in range(count)]
    so_far = 0
    for text in sorted(texts):
        parts[min(so_far * count // max(length, 1), count - 1)][text] = texts[text]
        so_far += len(compiled[text])
    return [part for part in parts if part]
