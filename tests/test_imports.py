"""Imports point one way, only some parts import PyTorch, and only the command line prints.

A part is a folder or a module of src/handheld. It may import the parts of the layers below its own;
parts in NARROW import less. Imports inside functions count too: the few that point upwards are listed in
UPWARD, with the reason. Imports for type checking may name anything.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "handheld"

#: from the bottom to the top; parts of one layer do not import each other
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "callers", "collector", "files", "progress", "module_paths", "names", "units"),
    ("adapters", "packing", "device", "cache", "child", "live_optimizer", "updates", "user_errors"),
    ("runners",),
    ("sensors", "optimizer_state", "targets"),
    ("graph", "store"),
    ("step", "container", "passes", "cost", "traces"),
    ("analyse",),
    ("package", "kernels", "export", "report", "data"),
    ("plan", "frontend", "serve"),
    ("backends",),
    ("drivers",),
    ("run",),
    ("measure", "suite", "conformance", "partial"),
    ("forecast",),
    ("limits",),
    ("profile", "resolve"),
    ("placement",),
    ("bench",),
    ("studies", "fleet"),
    ("federated",),
    ("cli",),
    ("handheld", "__main__"),
)

#: parts that may import less than their layer allows
NARROW: dict[str, set[str]] = {
    "sensors": {"errors", "child"},
    "runners": {"errors", "cache", "files"},
    "targets": {"errors", "units", "device", "cache", "child", "files", "runners"},
    "store": {"errors", "units", "device", "sensors"},
    "cost": {"errors", "units", "graph", "store"},
    "traces": {"errors", "units", "store"},
    "analyse": {"errors", "units", "graph", "store", "cost"},
    "export": {"errors", "files", "store", "analyse", "step", "container"},
    "report": {"errors", "units", "files", "store", "analyse"},
    "serve": {"errors", "units", "store", "analyse", "report"},
    "frontend": {
        "errors",
        "callers",
        "user_errors",
        "progress",
        "module_paths",
        "live_optimizer",
        "graph",
        "step",
        "passes",
    },
    "suite": {"errors", "names", "device", "graph", "step", "frontend"},
}

#: convenience methods for users that call a part above: file -> module -> methods
UPWARD: dict[str, dict[str, str]] = {
    "step.py": {
        "handheld.limits.means": "Step.plan: step.plan(device) describes the device and makes a plan that fits",
        "handheld.package": "Step.save: step.save(path) writes the step file",
    },
    "plan/plan.py": {
        "handheld.run.planning": "Plan.start and Plan.again: plan.start() opens the device",
        "handheld.profile.run": "Plan.profile: plan.profile(batches, path) starts and measures the plan",
    },
}

PRINTING = ("print", "sys.stdout.write", "sys.stderr.write")
FILES = sorted(path for path in ROOT.rglob("*.py"))


def part(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return "handheld" if first == "__init__.py" else first.removesuffix(".py")


def imported(tree: ast.AST, inside: bool) -> Iterator[tuple[str, int]]:
    """The modules that a file imports, without those for type checking; with `inside`, also those in functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute"
            if node.module == "handheld":
                yield from ((f"handheld.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield str(node.module), node.lineno
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imported(ast.Module(node.orelse, []), inside)
        elif inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(node, inside)


def modules(inside: bool) -> Iterator[tuple[Path, str, int]]:
    """Every import as (file, module, line)."""
    for path in FILES:
        for module, line in imported(ast.parse(path.read_text(encoding="utf-8")), inside):
            yield path, module, line


def may_import(own: str) -> set[str]:
    """The other parts that a part may import."""
    below: set[str] = set()
    for layer in LAYERS:
        if own in layer:
            break
        below.update(layer)
    return NARROW.get(own, below)


def test_every_part_has_its_layer():
    listed = [name for layer in LAYERS for name in layer]
    assert len(listed) == len(set(listed)) and set(listed) == {part(path) for path in FILES}
    assert all(NARROW[own] < {n for n in listed if n != own} for own in NARROW)


def test_imports_point_one_way():
    wrong, used = [], set()
    for path, module, line in modules(inside=True):
        own, names, where = part(path), module.split("."), str(path.relative_to(ROOT))
        if names[0] != "handheld" or module == "handheld" or names[1] == own or names[1] in may_import(own):
            continue
        if module in UPWARD.get(where, {}):
            used.add((where, module))
        else:
            wrong.append(f"{where}:{line}: {own} must not import {names[1]}")
    assert not wrong, "\n".join(wrong)
    assert used == {(where, module) for where, found in UPWARD.items() for module in found}, "one is no longer needed"


def test_upward_imports_are_inside_functions():
    """At the top of a file they would form a cycle and load modules that most users do not need."""
    eager = {(str(path.relative_to(ROOT)), module) for path, module, _ in modules(inside=False)}
    assert not [pair for pair in eager if pair[1] in UPWARD.get(pair[0], {})]


def test_imports_inside_functions_are_seen():
    text = """
import a
if TYPE_CHECKING:
    import b
class C:
    def f(self):
        try:
            from handheld import c
        except ImportError:
            import d
"""
    tree = ast.parse(text)
    assert [name for name, _ in imported(tree, inside=True)] == ["a", "handheld.c", "d"]
    assert [name for name, _ in imported(tree, inside=False)] == ["a"]


def test_the_package_itself_is_asked_for_its_version_only():
    """A part may `import handheld`, because Python imports the package before any of its parts, but may use only
    the version: everything else that the package offers is above every part."""
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "handheld"
        }
        assert names <= {"__version__"}, f"{path.relative_to(ROOT)}: handheld.{names}"


def test_torch_is_imported_where_it_belongs():
    wrong = []
    for path, module, line in modules(inside=False):
        where = path.relative_to(ROOT)
        home = where.parts[0] in ("frontend", "suite", "conformance", "partial") or str(where).startswith(
            ("backends/reference", "profile/watch.py", "module_paths.py", "federated/proximal_term.py")
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
    code = "import sys, handheld, handheld.cli.main, handheld.suite, handheld.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
