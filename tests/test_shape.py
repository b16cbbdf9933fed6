"""Modules, functions and lines of pages stay short, and pages name files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "bench", "scripts", "coverage")
MODULE_LINES, FUNCTION_LINES, COLUMNS = 400, 60, 120

#: What is still too long. Nothing is added here: it shrinks until it is empty.
LONG_MODULES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
WIDE_PAGES: set[str] = set()


def modules() -> dict[str, str]:
    """The text of every Python file by its path."""
    return {p.relative_to(ROOT).as_posix(): p.read_text() for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")}


def test_no_module_is_long() -> None:
    found = {path: len(text.splitlines()) for path, text in modules().items()}
    assert len(found) > 400, "the folders are where they were"
    assert {p: n for p, n in found.items() if n > MODULE_LINES and p not in LONG_MODULES} == {}


def test_no_function_is_long() -> None:
    found = {}
    for path, text in modules().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES and f"{path} {node.name}" not in LONG_FUNCTIONS:
                    found[f"{path} {node.name}"] = lines
    assert found == {}


def pages() -> list[Path]:
    return [
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "bench").glob("*.md"),
        *ROOT.glob("coverage/*.md"),
    ]


def test_no_line_of_a_page_is_wide() -> None:
    found = {}
    for path in pages():
        name = path.relative_to(ROOT).as_posix()
        wide = [n for n, line in enumerate(path.read_text().splitlines(), 1) if len(line) > COLUMNS]
        if wide and name not in WIDE_PAGES:
            found[name] = wide
    assert found == {}


def test_pages_name_files_that_exist() -> None:
    """Patterns such as `tests/cases/<family>.py` are not checked."""
    path = re.compile(r"(?<![\w/.-])(?:scripts|bench|coverage|tests)/[\w./-]*[\w/](?![\w<*])")
    named = {(page.name, found) for page in pages() for found in path.findall(page.read_text())}
    assert len(named) > 50, "pages name files"
    assert {(page, found) for page, found in named if not (ROOT / found).exists()} == set()


def test_names_of_test_modules_are_unique() -> None:
    """pytest imports test modules by their names alone: of two with one name, the second cannot be imported."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
