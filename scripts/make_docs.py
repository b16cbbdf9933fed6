"""Writes the pages and tables of docs/ that are generated from the code.

python scripts/make_docs.py           write them
python scripts/make_docs.py --check   exit with 1 if one of them is stale
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ.update(COLUMNS="80", TERMINAL_WIDTH="80", NO_COLOR="1")

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by scripts/make_docs.py. Change the code, then run it again. -->\n\n"


def commands_page() -> str:
    """The `--help` of every command, at 80 columns."""
    import typer
    from typer.testing import CliRunner

    from handheld.cli.main import app

    runner, lines = CliRunner(), [f"# Commands\n\n{NOTE}What `--help` prints.\n"]
    for name in ("", *command_names()):
        result = runner.invoke(app, [*name.split(), "--help"], prog_name="handheld")
        assert result.exit_code == 0, result.output
        text = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        lines.append(f"## handheld {name}".rstrip() + f"\n\n```\n{text}\n```\n")
    lines.append(f"<!-- typer {typer.__version__} -->\n")
    return "\n".join(lines)


def command_names() -> list[str]:
    """All commands, with those of a group: `study das2022`."""
    from handheld.cli.main import app

    groups = [(group.name, group.typer_instance) for group in app.registered_groups]
    return [str(command.name) for command in app.registered_commands] + [
        f"{name} {command.name}" for name, group in groups if group is not None for command in group.registered_commands
    ]


def errors_page() -> str:
    """The exception tree and the meaning of each class."""
    from handheld import errors

    tree = inspect.getdoc(errors) or ""
    rows = [_wrap(f"- `{c.__name__}`: {inspect.getdoc(c)}") for c in error_classes()]
    return "\n".join(
        (
            f"# Errors\n\n{NOTE}Everything Handheld raises on purpose is a `HandheldError` of "
            "`handheld.errors`. Ctrl-C or SIGTERM in\na training loop raises `Interrupted`, a "
            "`KeyboardInterrupt` that says where the state was saved.\n",
            "```text",
            tree,
            "```\n",
            *rows,
            "",
        )
    )


def error_classes() -> list[type[Exception]]:
    from handheld import errors

    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.HandheldError)]


def ops_page() -> str:
    """PyTorch's ops that have a lowering, and the graph's vocabulary."""
    return "\n".join(
        ("# Ops\n", NOTE + "## PyTorch ops\n", *_lowerings(), "## The graph's vocabulary\n", *_vocabulary())
    )


def lowerings() -> dict[str, Callable[..., object]]:
    """The whole table of lowerings, which importing capture fills."""
    importlib.import_module("handheld.frontend.capture")
    from handheld.frontend.registry import LOWERINGS

    return dict(LOWERINGS)


def _lowerings() -> Iterable[str]:
    import torch

    from handheld.frontend.registry import decompositions

    table = lowerings()
    yield (
        f"The {len(table)} ops of PyTorch below are lowered directly to the graph's vocabulary. Views "
        "(`view`, `permute`,\n`slice`, `expand`, `select` and similar ops) are not among them: a view is how an op "
        "reads its inputs, and\ncosts nothing.\n"
    )
    yield (
        "Integers have 32 bits on a device. Batches and constants that need more are refused. A "
        "sum or product\nthat needs more wraps around, while PyTorch's int64 would hold it.\n"
    )
    own = {str(op) for op in decompositions()}
    more = len(own - set(table))
    yield (
        f"PyTorch's own decompositions split other ops into simpler ones (PyTorch "
        f"{_minor(torch.__version__)} has {more} more);\nthese work if their parts do. Any other op raises "
        "`UnsupportedOp`, which names the op and its place in the\nmodel. An in-place op counts as its "
        "out-of-place form.\n"
    )
    groups: dict[str, list[str]] = {}
    for name, function in table.items():
        groups.setdefault(function.__module__, []).append(name)
    for module in sorted(groups):
        about = (inspect.getdoc(importlib.import_module(module)) or "").partition("\n")[0]
        yield f"### {module.rpartition('.')[2].capitalize()}\n\n{_wrap(about)}\n"
        yield _wrap(", ".join(f"`{_short(name)}`" for name in sorted(groups[module]))) + "\n"


def _wrap(text: str) -> str:
    """A paragraph or list item in lines of at most 110 columns."""
    indent = "  " if text.startswith("- ") else ""
    words = " ".join(text.split())
    return textwrap.fill(words, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _short(name: str) -> str:
    return name.removesuffix(".default")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _vocabulary() -> Iterable[str]:
    from handheld.graph import program
    from handheld.graph.ops import OPS

    yield f"A graph has {len(OPS)} kinds of nodes, and no others.\n"
    for op in OPS.values():
        inputs, outputs = ("any" if n is None else str(n) for n in (op.inputs, op.outputs))
        more = " and those of its epilogue" if op.epilogue else ""
        attrs = f"; attributes {', '.join(f'`{a}`' for a in op.attrs)}" if op.attrs else ""
        yield _wrap(f"- `{op.name}` (inputs {inputs}{more}; outputs {outputs}{attrs}): {op.doc}")
    yield "\nA program, in `map`, `reduce` and epilogues, is made of these instructions:\n"
    for title, names in (
        ("One argument", program.UNARY),
        ("Two arguments", program.BINARY),
        ("Reductions", program.REDUCTIONS),
        ("The rest", ("where", "gather", "random", *program.LEAVES)),
    ):
        yield _wrap(f"- {title}: {', '.join(f'`{name}`' for name in names)}")
    yield ""


def measurement_page() -> str:
    """The page with the current schema of the run file."""
    from importlib import resources

    from handheld.sensors.sink import SCHEMA

    text = (DOCS / "measurement.md").read_text(encoding="utf-8")
    schema = resources.files("handheld.store").joinpath("schema.sql").read_text()
    head, mark, rest = text.partition("<!-- schema:")
    note, _, rest = rest.partition("-->\n")
    _, end, tail = rest.partition("<!-- end of schema -->")
    assert mark and end, "docs/measurement.md has no place for the schema. Try: restore its two comments"
    return (
        f"{head}{mark}{note}-->\n```sql\n{schema.strip()}\n\n-- the sampler's tables{SCHEMA.rstrip()}\n```\n{end}{tail}"
    )


def suite_page() -> str:
    """The page with a table that has one row per workload, its size included."""
    from handheld.suite import WORKLOADS, count, get

    text = (DOCS / "suite.md").read_text(encoding="utf-8")
    head, mark, rest = text.partition("<!-- workloads:")
    note, _, rest = rest.partition("-->\n")
    _, end, tail = rest.partition("<!-- end of workloads -->")
    assert mark and end, "docs/suite.md has no place for the table. Try: restore its two comments"
    rows = ["| workload | what | of | domain | batch | parameters | GMAC |", "|---|---|---|---|---:|---:|---:|"]
    for name in WORKLOADS:
        sizes = [get(name, size=size) for size in ("small", "paper")]
        numbers = (
            " / ".join(dict.fromkeys(_short_number(count.parameters(w)) for w in sizes)),
            " / ".join(dict.fromkeys(_short_number(count.forward_flops(w) / 2e9) for w in sizes)),
        )
        rows.append(f"{workload_row(name)} {' | '.join(numbers)} |")
    rows += ["", "The options of each size, where the two differ:", ""]
    rows += [workload_sizes(name) for name in WORKLOADS if WORKLOADS[name].small != WORKLOADS[name].paper]
    return f"{head}{mark}{note}-->\n" + "\n".join(rows) + f"\n{end}{tail}"


def workload_row(name: str) -> str:
    """A workload's cells of the table, without those that must be counted."""
    from handheld.suite import WORKLOADS

    workload = WORKLOADS[name]
    used_in = ", ".join(workload.used_in)
    return f"| `{name}` | {workload.about} | {used_in} | {workload.domain} | {workload.default_batch} |"


def workload_sizes(name: str) -> str:
    """The options of both sizes of a workload."""
    from handheld.suite import WORKLOADS

    workload = WORKLOADS[name]
    small, paper = (
        ", ".join(f"{key} {value}" for key, value in options.items()) for options in (workload.small, workload.paper)
    )
    return _wrap(f"- `{name}`: small: {small}; paper: {paper}")


def _short_number(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def idioms_page() -> str:
    """The table of idioms, with what becomes of each."""
    sys.path.insert(0, str(DOCS.parent / "tests"))
    from idioms.idiom import IDIOMS
    from idioms.test_idioms import ORDER

    lines = [
        f"# Idioms\n\n{NOTE}What PyTorch training code does, and what becomes of it here. Each row has a test in\n"
        "`tests/idioms/`, which compares with PyTorch or checks the error."
    ]
    for topic, title in ORDER.items():
        rows = [f"| {case.code} | {case.here} |" for case in IDIOMS if case.topic == topic]
        lines += [f"\n## {title}\n", "| in PyTorch | here |", "|---|---|", *rows]
    return "\n".join((*lines, ""))


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "errors.md": errors_page,
    "ops.md": ops_page,
    "measurement.md": measurement_page,
    "suite.md": suite_page,
    "idioms.md": idioms_page,
}


def main() -> int:
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"docs/{name} is stale. Run: python scripts/make_docs.py")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")
    return int(stale > 0 and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
