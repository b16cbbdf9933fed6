"""Several program texts as one.

Some compilers take their time for a program, however small. PoCL reads the whole OpenCL header for
each: 110 ms where it is new, and 25 ms to find out that it is in its cache.

Each text is its own name space: the names of its functions, types, constants and macros may be in others
too. So what the i-th text declares gets the ending _i, through one macro per name, and all macros
end with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

_NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_LINE = r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
_DIRECTIVE = re.compile(_LINE, re.MULTILINE)
_MACRO = re.compile(r"[ \t]*#[ \t]*define[ \t]+(\w+)(.*)", re.DOTALL)
_TOKEN = re.compile(rf"(?P<directive>{_LINE})|\w+|\S", re.MULTILINE)
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")

#: tokens of a declaration: what is in brackets is one list
Token = str | list["Token"]


def merge(texts: Sequence[str]) -> str:
    """One text with the kernels of all, each under the name that `renamed` gives it."""
    return "".join(_part(text, i) for i, text in enumerate(texts))


def renamed(name: str, i: int) -> str:
    """What a name of the i-th text is called in the whole."""
    return f"{name}_{i}"


def _part(text: str, i: int) -> str:
    macros, own = names(text)
    before = "".join(f"#define {n} {renamed(n, i)}\n" for n in own)
    after = "".join(f"#undef {n}\n" for n in (*macros, *own))
    return f"{before}{text}\n{after}"


def names(text: str) -> tuple[list[str], list[str]]:
    """The macros of a text, and what it declares outside of functions. All branches of an #if count."""
    bare = _NO_CODE.sub(" ", text)
    macros: dict[str, str] = {}
    for directive in _DIRECTIVE.findall(bare):
        defined = _MACRO.fullmatch(directive)
        if defined:
            macros[defined[1]] = macros.get(defined[1], "") + defined[2]
    makers = {name for name, body in macros.items() if "{" in body}  # DEFINE_DOT(dot4, 4)
    own: dict[str, None] = {}
    for declaration in _declarations(_nested(bare), makers):
        own.update(dict.fromkeys(_declared(declaration, makers)))
    return list(macros), list(own)


def _nested(text: str) -> list[Token]:
    """The tokens of a text. Each pair of brackets is a list that begins with the opening one. Every branch
    of an #if begins as deep in brackets as the first one, whatever the others leave open."""
    whole: list[Token] = []
    open_lists, branches = [whole], list[list[list[Token]]]()
    for found in _TOKEN.finditer(text):
        token = found[0]
        if found["directive"]:
            kind = token.lstrip("# \t")
            if kind.startswith("if"):
                branches.append(open_lists.copy())
            elif kind.startswith("el") and branches:
                open_lists = branches[-1].copy()
            elif kind.startswith("endif") and branches:
                branches.pop()
        elif token in _OPEN:
            inner: list[Token] = [token]
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif token in _CLOSE:
            if len(open_lists) > 1:
                open_lists.pop()
        else:
            open_lists[-1].append(token)
    return whole


def _declarations(tokens: Sequence[Token], makers: set[str]) -> Iterator[list[Token]]:
    """Each up to its semicolon, or to the body of its function; attributes are left out."""
    found: list[Token] = []
    skip = False
    for token in tokens:
        if skip:  # an attribute's arguments
            skip = False
            continue
        skip = token == "__attribute__"
        if skip:
            continue
        if token != ";":
            found.append(token)
        made = len(found) == 2 and found[0] in makers
        body = _bracket(token) == "{" and len(found) > 1 and _bracket(found[-2]) == "("
        if token == ";" or made or body:
            yield found
            found = []


def _declared(tokens: list[Token], makers: set[str]) -> Iterator[str]:
    """The names that a declaration declares."""
    if not tokens:
        return
    if tokens[0] in makers:
        yield str(tokens[1][1])
        return
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if before in ("struct", "union", "enum") and _bracket(after) == "{":
            yield str(token)
    if tokens[0] == "typedef":
        yield next(token for token in reversed(tokens) if isinstance(token, str))
        return
    calls = [str(a) for a, b in pairwise(tokens) if isinstance(a, str) and _bracket(b) == "("]
    ends = tokens[-1] if _bracket(tokens[-1]) != "{" else tokens[-2]
    if calls and _bracket(ends) == "(" and "=" not in tokens:
        yield calls[-1]  # an earlier one may be a type that a macro makes
        return
    yield from _variables(tokens)


def _variables(tokens: list[Token]) -> Iterator[str]:
    """int a, b[2] = {1, 2}: each name stands last before [, =, a comma or the end."""
    name, value = "", False
    for token in (*tokens, ","):
        if token == ",":
            if name:
                yield name
            name, value = "", False
        elif token == "=":
            value = True
        elif isinstance(token, str) and token not in "*" and not value:
            name = token


def _bracket(token: Token) -> str:
    return str(token[0]) if isinstance(token, list) else ""
