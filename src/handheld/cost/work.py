"""The work of one op: all that its time and its energy are predicted from."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from handheld.graph.dtypes import F16, F32
from handheld.store.record import Record

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Work(Record):
    """An op as a plan runs it. `op` is its kind; docs/architecture.md lists the kinds. `variant` is the reason of the
    plan's choice, as `plan.explain()` prints it. `flops` and `bytes` are the least work (plan/work.py)."""

    op: str
    signature: str
    variant: str
    launches: int
    flops: int
    bytes: int

    @property
    def key(self) -> str:
        """Works with the same key take the same time on a device."""
        return f"{self.signature} | {self.variant}"

    @cached_property
    def words(self) -> Words:
        """The parts of the signature."""
        return Words.of(self.signature)

    @cached_property
    def style(self) -> str:
        """The variant without its numbers: kernels of one style have the same algorithm."""
        return _NUMBER.sub("#", self.variant.partition(":")[0])

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in the variant's text: sizes of tiles and the like."""
        return tuple(int(n) for n in _NUMBER.findall(self.variant))


@dataclass(frozen=True)
class Input:
    """An input in a signature. `strides` is empty if it is dense."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dtype: str = F32

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def repeated(self) -> bool:
        """Whether elements are read at several positions."""
        return any(n > 1 and s == 0 for n, s in zip(self.sizes, self.strides, strict=False))


@dataclass(frozen=True)
class Words:
    """A signature in parts; plan/signature.py describes the text. Words that are not understood are left out, so that
    signatures of other versions do no harm."""

    inputs: tuple[Input, ...]
    output: tuple[int, ...]
    attrs: dict[str, str]
    half: bool
    epilogue: int  # the logarithm of the epilogue's length
    program: str  # the checksum of the program

    @staticmethod
    def of(signature: str) -> Words:
        inputs: list[Input] = []
        output: tuple[int, ...] = ()
        attrs: dict[str, str] = {}
        half, epilogue, program, after = False, 0, "", False
        for word in signature.split(" ")[1:]:
            if word == ">":
                after = True
            elif word == F16:
                half = True
            elif "=" in word:
                name, _, attrs[name] = word.partition("=")
            elif after and not output and _sizes(word):
                output = _sizes(word)
            elif word[:1] == "e" and word[1:].isdigit():
                epilogue = int(word[1:])
            elif word[:1] == "p":
                program = word[1:]
            elif not after:
                inputs.append(_input(word))
        return Words(tuple(inputs), output, attrs, half, epilogue, program)

    def pair(self, name: str, default: int) -> int:
        """The product of an attribute's sizes."""
        return math.prod(_sizes(self.attrs.get(name, ""))) if name in self.attrs else default


def _input(word: str) -> Input:
    shape, _, dtype = word.partition(":")
    sizes, _, strides = shape.rstrip("+").partition("/")
    return Input(_sizes(sizes), _sizes(strides), dtype or F32)


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    return tuple(int(p) for p in parts) if all(p.lstrip("-").isdigit() for p in parts) else ()
