"""Tables fit the terminal: names are shortened, columns are dropped and named, and no number is cut."""

from __future__ import annotations

import io
import re

import pytest

from handheld.cli import output
from handheld.cli.tables import Column, Lines, table

COLUMNS = (
    Column("op", name_of=True, least=12),
    Column("phase", drop=1),
    Column("mean ms"),
    Column("spread", drop=3),
    Column("GFLOP/s", drop=2),
)
ROWS = [
    ("encoder.layers.0.attention matmul", "backward", "12.345", "3%", "1,024.5"),
    ("head add", "forward", "0.001", "12%", ""),
]


def printed(width: int) -> str:
    console = output.TrimmedConsole(file=io.StringIO(), width=width)
    console.print(table(COLUMNS, ROWS, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", (120, 80, 60, 50, 40, 30, 24))
def test_a_table_fits_and_cuts_no_number(width):
    text = printed(width)
    assert max(map(len, text.splitlines())) <= width
    assert "12.345" in text and "0.001" in text
    for number in ("1,024.5", "12%"):
        title = {"1,024.5": "GFLOP/s", "12%": "spread"}[number]
        gone = re.search(r"not shown in (?s:.*)" + title, text) is not None
        assert (number in text) != gone, f"{title} must be whole, or be named as dropped"


def test_names_are_shortened_before_columns_are_dropped():
    assert "encoder.layers.0.attention matmul" in printed(80)
    assert "…" in printed(60) and "not shown" not in printed(60)
    assert "not shown in 44 columns: spread\n" in printed(44)
    assert "not shown in 36 columns: spread,\nGFLOP/s\n" in printed(36)


@pytest.mark.parametrize(
    "names",
    (
        [f"features.{n}.conv{k} conv_input" for n in range(1, 18) for k in (1, 2, 3)],
        [f"{part}.layers.attention.projection matmul" for part in ("encoder", "decoder")],
        [f"transformer.encoder.layers.{n}.self_attention.out_projection matmul" for n in range(12)],
    ),
)
def test_shortened_names_stay_tellable_apart(names):
    columns = (Column("op", name_of=True, least=26, end=True), Column("ms"))
    console = output.TrimmedConsole(file=io.StringIO(), width=35)
    console.print(table(columns, [(name, "1.000") for name in names], width=35))
    rows = [line.rsplit(maxsplit=1)[0] for line in console.file.getvalue().splitlines()[1:]]  # type: ignore[attr-defined]
    assert all(len(row) <= 33 for row in rows) and len(set(rows)) == len(names), rows
    assert all(row.endswith(name.split()[-1]) for row, name in zip(rows, names, strict=True)), "the op is kept"


def test_a_title_of_two_words_is_broken_only_if_there_is_no_room():
    assert "mean ms" in printed(80)
    assert "mean ms" not in printed(50) and "12.345" in printed(50)


def test_lines_have_the_same_rules(monkeypatch):
    columns = ((Column("workload", name_of=True, least=8), 20), (Column("samples/s"), 9), (Column("memory", drop=1), 9))
    for width, dropped in ((40, False), (30, False), (20, True)):
        monkeypatch.setattr(output.out, "_width", width)
        lines = Lines(*columns)
        line = lines.line("efficientnet_b0.step", "1,234,567", "1.5 GiB").rstrip()
        assert len(line) <= width and "1,234,567" in line
        assert ("memory" in lines.head.splitlines()[0]) is not dropped
        assert ("not shown in 20 columns: memory" in lines.head) is dropped


def test_only_a_terminal_gets_trailing_spaces():
    for terminal in (False, True):
        console = output.TrimmedConsole(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
        console.print(table((Column("a", name_of=True), Column("b", name_of=True)), [("x", "y"), ("longer", "words")]))
        text = console.file.getvalue()
        assert any(line.endswith(" ") for line in text.splitlines()) is terminal
        assert re.sub(r" +\n", "\n", text) == " a       b\n x       y\n longer  words\n"


@pytest.mark.parametrize(
    ("number", "what", "said"),
    (
        (1, "float", "1 float"),
        (16, "float", "16 floats"),
        (1, "launch", "1 launch"),
        (1200, "launch", "1,200 launches"),
    ),
)
def test_one_is_singular(number, what, said):
    assert output.count(number, what) == said
