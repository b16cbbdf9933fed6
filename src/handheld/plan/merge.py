"""Merges several program texts into one.

Some compilers need a long time per program, even for a small one. PoCL reads the whole OpenCL header for each
program: a new one takes 110 ms, and finding one in its cache takes 25 ms.

Different texts may use the same names for functions, types, constants and macros. One macro per name therefore
adds the suffix _i to everything that the i-th text declares. All macros are undefined at the end of the text.
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
_IN_BODY = re.compile(rf"(?P<directive>{_LINE})|[{{}}]", re.MULTILINE)  # in { }, where nothing is declared for outside
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")

#: A token of a declaration. A pair of brackets and its content is a list.
Token = str | list["Token"]


def merge(texts: Sequence[str]) -> str:
    """Returns one text with the kernels of all texts. `renamed` gives their new names."""
    return "".join(_part(text, i) for i, text in enumerate(texts))


def renamed(name: str, i: int) -> str:
    """Returns the name in the merged text of a name in the i-th text."""
    return f"{name}_{i}"


def _part(text: str, i: int) -> str:
    macros, own = names(text)
    before = "".join(f"#define {n} {renamed(n, i)}\n" for n in own)
    after = "".join(f"#undef {n}\n" for n in (*macros, *own))
    return f"{before}{text}\n{after}"


def names(text: str) -> tuple[list[str], list[str]]:
    """Returns the macros of a text and the names that it declares outside functions, in all branches of each #if."""
    bare = _NO_CODE.sub(" ", text)
    macros: dict[str, str] = {}
    for directive in _DIRECTIVE.findall(bare):
        defined = _MACRO.fullmatch(directive)
        if defined:
            macros[defined[1]] = macros.get(defined[1], "") + defined[2]
    makers = {name for name, body in macros.items() if "{" in body}  # such as DEFINE_DOT(dot4, 4)
    own: dict[str, None] = {}
    for declaration in _declarations(_nested(bare), makers):
        own.update(dict.fromkeys(_declared(declaration, makers)))
    return list(macros), list(own)


def _nested(text: str) -> list[Token]:
    """Returns the tokens of a text. Each pair of brackets is a list that begins with the opening bracket.

    Of the content of { } it has only further { }. Every branch of an #if begins at the same depth as the first one,
    even if another branch leaves brackets open.
    """
    whole: list[Token] = []
    open_lists, branches = [whole], list[list[list[Token]]]()
    position = 0
    while match := (_IN_BODY if _bracket(open_lists[-1]) == "{" else _TOKEN).search(text, position):
        token, position = match[0], match.end()
        if match["directive"]:
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
    """Yields the declarations: each ends at a semicolon or after the body of a function. Attributes are left out."""
    declaration: list[Token] = []
    skip = False
    for token in tokens:
        if skip:  # These are the arguments of an attribute.
            skip = False
            continue
        skip = token == "__attribute__"
        if skip:
            continue
        if token != ";":
            declaration.append(token)
        by_macro = len(declaration) == 2 and declaration[0] in makers
        body = _bracket(token) == "{" and len(declaration) > 1 and _bracket(declaration[-2]) == "("
        if token == ";" or by_macro or body:
            yield declaration
            declaration = []


def _declared(tokens: list[Token], makers: set[str]) -> Iterator[str]:
    """Yields the names that a declaration declares."""
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
        yield calls[-1]  # An earlier one may be a macro that gives a type.
        return
    yield from _variables(tokens)


def _variables(tokens: list[Token]) -> Iterator[str]:
    """Yields the names of variables, as in `int a, b[2] = {1, 2}`: the last word before [, =, a comma or the end."""
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
    return str(token[0]) if isinstance(token, list) and token else ""
