"""Markup that is safe to put into a page: everything that is not `Markup` is escaped.

tag("p", "a < b")                  ->  <p>a &lt; b</p>
tag("p", tag("b", "a"), " < b")    ->  <p><b>a</b> &lt; b</p>
"""

from __future__ import annotations

import html
import math
import re

EMPTY = frozenset({"circle", "line", "meta", "path", "polygon", "polyline", "rect"})
#: Characters that XML does not allow, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Well-formed text with tags."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Markup is returned unchanged; anything else is escaped."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(text))))


def join(*parts: object) -> Markup:
    return Markup("".join(map(escape, parts)))


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. In attribute names write `class_` for class and `stroke_width` for stroke-width. An attribute that is
    None is left out. Floats are pixels and get two decimals."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            value = _pixels(value) if isinstance(value, float) else value
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(value)}"')
    if name in EMPTY and not inside:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{join(*inside)}</{name}>")


def _pixels(value: float) -> str:
    assert math.isfinite(value), "coordinates must be finite"
    return f"{value:.2f}".rstrip("0").rstrip(".")
