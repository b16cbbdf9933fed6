"""`handheld profile`: where the time, memory and energy of a training step go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from handheld.analyse.run import Row, Run, open_run
from handheld.cli import show
from handheld.cli.options import Json, On, Seed, Spec
from handheld.cli.source import open_source
from handheld.errors import HandheldError, RunFileError
from handheld.profile.session import STEPS
from handheld.profile.session import profile as measure
from handheld.run.batch import batch_sizes

SHOWN = 12  # rows of a table
LIVE_S = 0.5  # between two looks at the run


def profile(
    what: Spec,
    on: On = "opencl",
    batch: Annotated[int | None, typer.Option("--batch", min=1, metavar="N", help=(
        "Batch size; the model's own if not given."))] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help=(
        "Steps to run."))] = STEPS,
    graph: Annotated[str | None, typer.Option("--graph", metavar="NAME", help=(
        "The graph to run; the one that trains if not given."))] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.run", help=(
        "Where to write the run; NAME-N.run if not given."))] = None,
    energy: Annotated[bool, typer.Option("--energy", help=(
        "Measure the energy of each op, too: takes minutes, and a sensor of power."))] = False,
    live: Annotated[bool, typer.Option("--live", help=(
        "Show the run in the terminal while it goes on."))] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a training step many times and say where its time, memory and energy go.

    Everything is written to a run file as it happens: a run that is stopped or killed still opens
    (handheld.open_run in Python). Sensors that are here are sampled beside it; those that are not
    are in the file with the reason.

    \b
    Examples:
    handheld profile mobilenet_v2
    handheld profile mine.py:make --on opencl:0 --batch 16 --steps 200
    handheld profile resnet18 --energy --out resnet18.run
    """
    source = open_source(what)
    size = batch or source.default_batch
    step = source.step([size], seed)
    name = graph or next(iter(batch_sizes(step.graphs, "train").values()), None) or next(
        (n for n in step.graphs if step.graphs[n].writes), next(iter(step.graphs)))
    if name not in step.graphs:
        raise HandheldError(f"there is no graph {name!r}; there are {', '.join(step.graphs)}")
    inputs = _inputs(source.example(size), step.graphs[name].inputs, name)
    path = out or _free(source.name)
    plan = step.plan(on, graphs=[name])
    with _watched(path, steps, live and not json, json) as progress:
        run = measure(plan, inputs, path, steps=steps, graph=name, energy=energy,
                      progress=progress, what=source.name, batch=size, seed=seed)
    with run:
        if json:
            show.print_json({**run.summary(), "ops": run.ops()[:SHOWN],
                             "findings": run.findings(), "op_energy": run.op_energy()})
        else:
            present(run)


def _inputs(example: Any, wanted: Any, name: str) -> tuple[Any, ...]:
    arrays = tuple(np.asarray(one) for one in example)
    if len(arrays) < len(wanted):
        raise HandheldError(f"graph {name} takes {len(wanted)} inputs and there is data for "
                            f"{len(arrays)}")
    return arrays[: len(wanted)]


def _free(name: str) -> Path:
    """NAME-1.run, or the next number that is not taken."""
    stem = Path(name).stem.replace(":", "-") or "run"
    return next(path for n in range(1, 1_000_000)
                if not (path := Path(f"{stem}-{n}.run")).exists())


@contextlib.contextmanager
def _watched(path: Path, steps: int, live: bool, quiet: bool
             ) -> Iterator[Callable[[int, int, str], None] | None]:
    """On a terminal: a line that says how far it is, or, if asked for, the run itself."""
    if quiet or not show.err.is_terminal:
        yield None
        return
    begun, last = time.monotonic(), 0.0
    with Live(console=show.err, transient=True, refresh_per_second=4) as screen:

        def progress(done: int, count: int, what: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < LIVE_S:
                return
            last = now
            text = Text.assemble((f"{what} ", "bold"), f"{done}/{count}  ",
                                 (show.duration(now - begun), "dim"))
            screen.update(Group(text, *_so_far(path)) if live else text)

        yield progress


def _so_far(path: Path) -> list[RenderableType]:
    """What the file says already."""
    try:
        with open_run(path) as run:
            return [_head(run), _ops(run, 8)] if run.periods else [_head(run)]
    except RunFileError:
        return []


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def present(run: Run) -> None:
    show.out.print(_head(run))
    if run.periods:
        show.out.print(_parts(run))
        show.out.print(_ops(run, SHOWN))
    joules = run.op_energy()
    if joules:
        show.out.print(_joules(run, joules))
    for one in run.findings():
        show.out.print(Text.assemble((f"{one['kind']}: ", "bold"), one["text"]), soft_wrap=False)
    for note in run.notes():
        show.warn(note["text"])
    show.out.print(f"run file {run.path}", style="dim")


def _head(run: Run) -> Table:
    one = run.summary()
    variance = one["variance"]
    rows: list[tuple[str, str | Text]] = [
        ("device", f"{one['device']} ({one['name']})"),
        ("step", f"{one['graph']}" + (f", batch {one['batch']}" if one["batch"] else "")
                 + f"; {one['steps']} steps, "
                 f"{one['recorded']} with op times")]
    if variance.get("n"):
        rows.append(("time", f"{variance['median']:.3f} ms a step (5% {variance['p5']:.3f}, 95% "
                             f"{variance['p95']:.3f}); {variance['warm_up']} steps of warm-up"))
    use = one["utilisation"]
    if "device_busy" in use:
        rows.append(("use", f"device busy {use['device_busy']:.0%}, {use['gflops']:.1f} GFLOP/s, "
                            f"at least {use['gbytes_s']:.1f} GB/s"
                            + _cores(use.get("cores", {}))))
    memory = one["memory"]
    if memory.get("peak_bytes"):
        biggest = ", ".join(f"{name} {show.size(size)}" for name, _, size in memory["owners"][:3])
        rows.append(("memory", f"{show.size(memory['allocated_bytes'])} allocated, "
                               f"{show.size(memory['peak_bytes'])} alive at the peak: {biggest}"))
    rows.append(("energy", _energy(one["energy"])))
    sampler = one["overhead"]["sampler"]
    share = one["overhead"]["recording_share"]
    if share is not None:
        rows.append(("overhead", f"recording {share:.1%} of the run"
                     + (f", sensors {sampler['cpu_share']:.1%} of a core" if sampler else "")))
    return show.grid(rows)


def _cores(cores: dict[str, float]) -> str:
    if not cores:
        return ""
    return f"; cores busy {', '.join(f'{share:.0%}' for share in list(cores.values())[:8])}"


def _energy(rows: list[Row]) -> str:
    if not rows:
        return "not measured: no sensor of power is here (handheld doctor says why)"
    return "; ".join(
        f"{row['rail']} {row['joules_step']:.4g} J a step, {row['watts']:.1f} W"
        + (f" (idle {row['idle_watts']:.1f} W)" if row["idle_watts"] is not None else "")
        for row in rows)


def _parts(run: Run) -> Table:
    """Where the time of a step goes."""
    found = run.parts()
    assert found is not None
    table = _table("where a step goes", "ms", "share")
    for name, ms in found.items():
        if name not in ("ms", "steps") and abs(ms) > 0.0005 * found["ms"]:
            table.add_row(name, f"{ms:.3f}", f"{ms / found['ms']:.1%}")
    table.add_row("all", f"{found['ms']:.3f}", "100%", style="bold")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column(first, overflow="ellipsis", no_wrap=True, max_width=34)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ops(run: Run, count: int) -> Table:
    table = _table("op", "phase", "ms", "share", "spread", "GFLOP/s", "GB/s")
    rows = [row for row in run.ops() if row["ms"] is not None]
    for row in rows[:count]:
        name = f"{row['path'] or '(model)'} {row['op']}"
        table.add_row(name, row["phase"], f"{row['ms']:.3f}", f"{row['share']:.1%}",
                      f"{row['cv']:.0%}", f"{row['gflops'] or 0:.1f}",
                      f"{row['gbytes_s'] or 0:.1f}")
    rest = rows[count:]
    if rest:
        table.add_row(f"and {show.count(len(rest), 'op')} more", "",
                      f"{sum(r['ms'] for r in rest):.3f}",
                      f"{sum(r['share'] for r in rest):.1%}", "", "", "", style="dim")
    return table


def _joules(run: Run, rows: list[Row]) -> Table:
    rail = rows[0]["rail"]
    table = _table(f"energy of ops, {rail}", "slope mJ", "±", "alone mJ", "±")
    mine = {(row["signature"], row["method"]): row for row in rows if row["rail"] == rail}
    names = sorted({key for key, _ in mine},
                   key=lambda key: -(mine.get((key, "slope")) or {"joules": 0})["joules"])
    for key in names[:SHOWN]:
        cells = []
        for method in ("slope", "alone"):
            row = mine.get((key, method))
            cells += [f"{row['joules'] * 1e3:.3f}",
                      f"{(row['high_joules'] - row['joules']) * 1e3:.3f}"] if row else ["", ""]
        table.add_row(key, *cells)
    for row in run.step_energy():
        if row["rail"] == rail:
            table.add_row("sum over ops", f"{(row['slope'] or 0) * 1e3:.3f}", "",
                          f"{(row['alone'] or 0) * 1e3:.3f}", "", style="bold")
            table.add_row("a step, measured", f"{row['joules'] * 1e3:.3f}",
                          f"{row['half_width'] * 1e3:.3f}", "", "", style="bold")
    return table
