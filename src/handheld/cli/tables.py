"""Tables that fit the terminal: names are shortened, then columns are dropped and named. Numbers are never cut.

Names of one column are cut at the place that leaves most of them different from each other.

Room is made in this order: names are shortened down to the least width of their column; then whole columns are
dropped, the one with the highest `drop` first; then names are shortened further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from handheld.cli import output

GAP = 2  # Spaces that a column needs beside its cells.
SHORTEST = 4  # The least width of a name.

Cell = str | Text


@dataclass(frozen=True)
class Column:
    """A column of numbers or, with `name_of`, of names.

    `drop` says which columns may be left out: those with the highest number first, and never those with 0.
    `least` is the width to which names are shortened before a column is dropped.
    `end` is for names of ops: their first modules become letters, so that the last module and the op are kept.
    """

    title: str
    name_of: bool = False
    drop: int = 0
    least: int = 10
    end: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    styles: Sequence[str] = (),
    width: int | None = None,
) -> RenderableType:
    """The rows as a table of at most `width` characters (default: the terminal's). `styles` has one entry per row.

    A name is one line; further lines of its cell are details, which the caller has made short enough.
    """
    room = width or output.out.width
    cells = [[row[i] for row in rows] for i in range(len(columns))]
    whole, broken = ([_need(*pair, wrap) for pair in zip(columns, cells, strict=True)] for wrap in (False, True))
    needs = whole if sum(whole) + GAP * len(columns) <= room else broken
    shown, widths = fit(columns, needs, room)
    made = Table(box=None, padding=(0, 1), header_style="dim", title=title or None, title_justify="left")
    made.title_style = "bold"
    cuts = [_cut(*pair) for pair in zip(columns, cells, widths, strict=True)]
    for i in shown:
        column = columns[i]
        made.add_column(
            _short(column.title, widths[i]) if column.name_of else column.title,
            justify="left" if column.name_of else "right",
            width=widths[i],
            no_wrap=column.name_of,
            overflow="fold",
        )
    for number, row in enumerate(rows):
        line = [_short(row[i], widths[i], cuts[i]) if columns[i].name_of else row[i] for i in shown]
        made.add_row(*line, style=styles[number] if styles else "")
    note = dropped([column.title for i, column in enumerate(columns) if i not in shown], room)
    return Group(made, Text(note, style="dim")) if note and rows else made


class Lines:
    """A table that is printed line by line. The width of each column is given, because the rows are not known yet."""

    def __init__(self, *columns: tuple[Column, int]) -> None:
        self.columns = [column for column, _ in columns]
        self._room = output.out.width
        self._shown, self._widths = fit(self.columns, [width for _, width in columns], self._room + 1, gap=1)

    def shows(self, title: str) -> bool:
        return any(self.columns[i].title == title for i in self._shown)

    @property
    def head(self) -> str:
        """The titles and, if columns were left out, a line that names them."""
        note = dropped([c.title for i, c in enumerate(self.columns) if i not in self._shown], self._room)
        return self.line(*(column.title for column in self.columns)) + (f"\n{note}" if note else "")

    def line(self, *cells: str) -> str:
        """The cells of the first columns, each followed by a space."""
        parts = []
        for i in (i for i in self._shown if i < len(cells)):
            name, width = self.columns[i].name_of, self._widths[i]
            parts.append(f"{output.middle(cells[i], width):<{width}}" if name else f"{cells[i]:>{width}}")
        return " ".join((*parts, ""))


def dropped(titles: Sequence[str], room: int) -> str:
    """What to say about columns that were left out, or ""."""
    return f" not shown in {room} columns: {', '.join(titles)}" if titles else ""


def fit(columns: Sequence[Column], needs: Sequence[int], room: int, gap: int = GAP) -> tuple[list[int], list[int]]:
    """Which columns are shown (their positions), and the width of each column."""
    shown, widths = list(range(len(columns))), list(needs)

    def excess() -> int:
        return sum(widths[i] + gap for i in shown) - room

    def shorten(least: Sequence[int]) -> None:
        while excess() > 0:
            able = [i for i in shown if columns[i].name_of and widths[i] > least[i]]
            if not able:
                return
            widest = max(able, key=lambda i: widths[i])
            widths[widest] -= 1

    while True:
        widths[:] = needs
        shorten([min(need, column.least) for need, column in zip(needs, columns, strict=True)])
        able = [i for i in shown if columns[i].drop]
        if excess() <= 0 or not able:
            break
        shown.remove(max(able, key=lambda i: (columns[i].drop, i)))
    shorten([SHORTEST] * len(columns))
    return shown, widths


def _need(column: Column, cells: Sequence[Cell], wrap: bool) -> int:
    """The width of the widest cell. With `wrap`, the title of a column of numbers is broken between its words."""
    lines = [line for cell in cells for line in str(cell).splitlines()]
    title = column.title.split() if wrap and not column.name_of else [column.title]
    return max((len(text) for text in (*lines, *title)), default=1)


@dataclass(frozen=True)
class Cut:
    """How the names of a column are shortened: modules to their first letter or not, then a cut after `head`."""

    letters: bool
    head: int

    def short(self, name: str, width: int) -> str:
        return output.middle(initials(name, width) if self.letters else name, width, self.head)


def initials(name: str, width: int) -> str:
    """The name of an op with its modules as letters, the first ones first, until it fits. Numbers and the last module
    are kept: `features.11.conv2 conv` becomes `f.11.conv2 conv`."""
    path, space, op = name.partition(" ")
    modules = path.split(".")
    for i, module in enumerate(modules[:-1]):
        if len(".".join(modules)) + len(space + op) <= width:
            break
        modules[i] = module if module.isdigit() else module[:1]
    return ".".join(modules) + space + op


def _cut(column: Column, cells: Sequence[Cell], width: int) -> Cut:
    """The cut that leaves most names of a column different from each other; the usual one if it is as good."""
    usual = Cut(column.end, 0 if column.end else width // 2)
    names = {str(cell).partition("\n")[0] for cell in cells} if column.name_of else set()
    if all(len(name) <= width for name in names):
        return usual
    near = sorted(range(width), key=lambda head: abs(head - usual.head))
    cuts = [Cut(letters, head) for letters in dict.fromkeys((column.end, False)) for head in near]
    return max(cuts, key=lambda cut: len({cut.short(name, width) for name in names}))


def _short(cell: Cell, width: int, cut: Cut | None = None) -> Cell:
    text = str(cell)
    if len(text.partition("\n")[0]) <= width:
        return cell
    first, *rest = text.split("\n")
    return "\n".join((cut.short(first, width) if cut else output.middle(first, width), *rest))
