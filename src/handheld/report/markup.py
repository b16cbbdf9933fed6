"""Markup that is safe to put into a page: what is not made here is escaped.

tag("p", "a < b")                  ->  <p>a &lt; b</p>
tag("p", tag("b", "a"), " < b")    ->  <p><b>a</b> &lt; b</p>
"""

from __future__ import annotations

import html
import math
import re

EMPTY = frozenset({"circle", "line", "meta", "path", "polygon", "polyline", "rect"})
#: what XML cannot hold, escaped or not
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text with tags in it, well-formed."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Markup as it is, anything else as text."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(text))))


def join(*parts: object) -> Markup:
    return Markup("".join(map(escape, parts)))


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """An element. An attribute's name: `class_` for class, `stroke_width` for stroke-width; None
    leaves it out. Floats are pixels: two decimals."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            value = _pixels(value) if isinstance(value, float) else value
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(value)}"')
    if name in EMPTY and not inside:
        return Markup(f"<{' '.join(words)}/>")
    return Markup(f"<{' '.join(words)}>{join(*inside)}</{name}>")


def _pixels(value: float) -> str:
    assert math.isfinite(value), "a chart's coordinates are finite"
    return f"{value:.2f}".rstrip("0").rstrip(".")
