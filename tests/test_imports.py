"""Imports point one way, PyTorch stays where it belongs, and only the command line prints.

    errors, device, cache, collector → graph → passes → kernels → plan → backends → run → measure
    → profile → bench → cli
    errors → sensors → store → analyse → profile
    suite → resolve → bench, cli

Imports inside functions and for type checking are not counted: a plan may open its device when it
is started, and a type may be named anywhere.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "handheld"

#: what each part may import, itself aside; `step` and `package` are data over graphs
_BASE = {"errors", "device"}
_STEP = _BASE | {"graph", "step"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "device": {"errors"},
    "cache": {"errors"},
    "child": set(),
    "sensors": {"errors", "child"},
    "collector": set(),
    "module_paths": set(),
    "graph": _BASE,
    "step": _BASE | {"graph"},
    "container": _BASE | {"graph"},
    "package": _STEP | {"collector", "container"},
    "passes": _BASE | {"graph"},
    "kernels": _BASE | {"graph", "passes"},
    "plan": _STEP | {"cache", "collector", "passes", "kernels"},
    "backends": _STEP | {"cache", "passes", "kernels", "plan", "store"},
    "run": _STEP | {"collector", "container", "package", "passes", "kernels", "plan", "backends"},
    "measure": _STEP | {"cache", "child", "kernels", "plan", "backends", "run"},
    "store": {"errors", "device", "sensors"},
    "analyse": {"errors", "graph", "store"},
    "profile": _STEP | {"module_paths", "kernels", "plan", "backends", "run", "measure", "sensors", "store", "analyse"},
    "report": set(),
    "frontend": _STEP | {"module_paths", "passes"},
    "suite": _STEP | {"frontend"},
    "export": {"errors", "store", "analyse"},
    "resolve": _STEP | {"container", "package", "suite", "run"},
    "bench": _STEP
    | {
        "handheld",
        "cache",
        "child",
        "package",
        "suite",
        "resolve",
        "plan",
        "backends",
        "run",
        "sensors",
        "store",
        "analyse",
        "profile",
    },
    "studies": _STEP
    | {
        "handheld",
        "cache",
        "kernels",
        "plan",
        "backends",
        "run",
        "measure",
        "analyse",
        "profile",
        "report",
        "sensors",
        "suite",
        "bench",
        "store",
    },
    "cli": _STEP
    | {
        "handheld",
        "child",
        "container",
        "package",
        "plan",
        "backends",
        "run",
        "measure",
        "suite",
        "resolve",
        "sensors",
        "analyse",
        "profile",
        "report",
        "export",
        "studies",
        "bench",
    },
    "handheld": _BASE | {"step", "frontend"},
    "__main__": {"cli"},
}
PRINTING = ("print", "sys.stdout.write", "sys.stderr.write")
FILES = sorted(path for path in ROOT.rglob("*.py"))


def part(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return "handheld" if first == "__init__.py" else first.removesuffix(".py")


def imported(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """Modules imported when the file is: not in functions, not for type checking."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute"
            if node.module == "handheld":
                yield from ((f"handheld.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield str(node.module), node.lineno
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported(node.orelse)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from imported(node.body)


def modules() -> Iterator[tuple[Path, str, int]]:
    """Every import of every file: the file, the module, the line."""
    for path in FILES:
        for module, line in imported(ast.parse(path.read_text(encoding="utf-8")).body):
            yield path, module, line


def test_imports_point_one_way():
    wrong = []
    for path, module, line in modules():
        own, names = part(path), [*module.split("."), "handheld"]
        if names[0] == "handheld" and names[1] != own and names[1] not in ALLOWED[own]:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {own} must not import {names[1]}")
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_where_it_belongs():
    wrong = []
    for path, module, line in modules():
        where = path.relative_to(ROOT)
        home = where.parts[0] in ("frontend", "suite") or str(where).startswith(
            ("backends/reference", "profile/watch.py", "module_paths.py")
        )
        if module.partition(".")[0] == "torch" and not home:
            wrong.append(f"{where}:{line}")
    assert not wrong, "torch is imported in " + ", ".join(wrong)


def test_only_the_command_line_prints():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        if part(path) != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTING
    ]
    assert not wrong, "prints: " + ", ".join(wrong)


def test_the_core_does_not_import_torch():
    code = (
        "import sys, handheld, handheld.cli.main, handheld.suite, handheld.run.data; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
