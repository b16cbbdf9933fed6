"""Several program texts as one.

Some compilers take their time for a program, however small. PoCL reads the whole OpenCL header for
each: 110 ms where it is new, and 25 ms to find out that it is in its cache.

A text is its own name space: names of functions, types and macros may be in others too. So the
functions and types of the i-th text get the ending _i, by a macro each, and all macros end with the
text. What is at the left margin is taken for a declaration; the kernels are written that way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACROS = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_TYPES = re.compile(r"^typedef\b[^;{]*(?:\{[^}]*\})?[^;{]*?\b(\w+)\s*;", re.MULTILINE)
_FUNCTIONS = re.compile(r"^(?!typedef\b)[A-Za-z_][\w \t*]*?\b(\w+)[ \t]*\(", re.MULTILINE)
#: a macro that defines a function: DEFINE_DOT(dot4, 4)
_MADE = re.compile(r"^[A-Z][A-Z_]*\((\w+)", re.MULTILINE)


def merge(texts: Sequence[str]) -> str:
    """One text with the kernels of all, each under the name that `renamed` says."""
    return "".join(_part(text, i) for i, text in enumerate(texts))


def renamed(name: str, i: int) -> str:
    """What a name of the i-th text is called in the whole."""
    return f"{name}_{i}"


def _part(text: str, i: int) -> str:
    bare = _COMMENTS.sub("", text)
    macros = dict.fromkeys(_MACROS.findall(bare))
    names = dict.fromkeys((*_TYPES.findall(bare), *_FUNCTIONS.findall(bare), *_MADE.findall(bare)))
    own = [n for n in names if n not in macros and n != "__attribute__"]
    before = "".join(f"#define {n} {renamed(n, i)}\n" for n in own)
    after = "".join(f"#undef {n}\n" for n in (*macros, *own))
    return f"{before}{text}\n{after}"
