"""`handheld profile`: where the time, memory and energy of a training step go."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from handheld.analyse.estimate import Estimate
from handheld.analyse.run import Run, open_run
from handheld.cli import output
from handheld.cli.data_options import PLAIN, DataOptions, with_example_options
from handheld.cli.fleet_run import on_fleet
from handheld.cli.live import watching
from handheld.cli.means_options import AS_IS, Means, with_means
from handheld.cli.options import SPEC_HELP, Data, Json, MemoryLimit, OnAutoFleet, Precision, Seed, Size, nbytes
from handheld.cli.partial_options import with_partial_options
from handheld.cli.placing import AUTO, Wanted, placed
from handheld.cli.prepare import capture_example, check_frozen
from handheld.cli.repeating import Request, asked, planned, tell
from handheld.cli.report import write_beside
from handheld.cli.run_tables import present
from handheld.cli.stages import stages
from handheld.errors import HandheldError, TargetLost
from handheld.fleet.figures import RUN
from handheld.measure import ceilings
from handheld.partial.options import WHOLE, PartialOptions
from handheld.plan.plan import Plan
from handheld.profile.inputs import graphs_in_turn, inputs_for
from handheld.profile.machine import need_power
from handheld.profile.run import STEPS, Progress
from handheld.profile.run import profile as measure
from handheld.progress import report
from handheld.resolve import ModelSpec, open_model
from handheld.step import Step

Batch = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help=("Batch size. Default: the model's own."))
]
Steps = Annotated[int, typer.Option("--steps", min=1, metavar="N", help=("Steps to run."))]
Graph = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="NAME",
        help=("The graph to run. Default: the graph that trains; if there are several, they take turns."),
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.run", help=("Run file to write. Default: NAME-N.run."))
]
Energy = Annotated[
    bool, typer.Option("--energy", help=("Also measure the energy of each op. Takes minutes and needs a power sensor."))
]
EnergySeconds = Annotated[
    float | None,
    typer.Option(
        "--energy-seconds", min=1, metavar="S", help=("About how long --energy may take. Less time resolves fewer ops.")
    ),
]
EstimateEnergy = Annotated[
    bool,
    typer.Option(
        "--estimate-energy",
        help=(
            "Estimate energy as --watts-busy times busy time plus --watts-idle times idle time. Marked "
            "as an estimate wherever it appears."
        ),
    ),
]
WattsBusy = Annotated[
    float | None, typer.Option("--watts-busy", metavar="W", help=("For the estimate: power of the busy device."))
]
WattsIdle = Annotated[
    float, typer.Option("--watts-idle", metavar="W", help=("For the estimate: power of the idle device."))
]
NoCeilings = Annotated[
    bool,
    typer.Option(
        "--no-ceilings",
        help=(
            "Do not measure the device's ceilings if they are missing. What limits the step is then known less well."
        ),
    ),
]
NoReport = Annotated[bool, typer.Option("--no-report", help=("Do not write the page (FILE.html) beside the run file."))]
LiveOption = Annotated[bool, typer.Option("--live", help=("Show tables in the terminal during the run."))]


What = Annotated[str | None, typer.Argument(metavar="WHAT", help=SPEC_HELP, show_default=False)]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="RUN",
        help="Repeat a run: its model, settings and tuned variants. --on and --steps may be others.",
    ),
]


@on_fleet("profile", lambda own: own / RUN)
@with_partial_options
@with_means
@with_example_options
def profile(
    what: What = None,
    size: Size = None,
    on: OnAutoFleet = "opencl",
    precision: Precision = "float32",
    batch: Batch = None,
    steps: Steps = STEPS,
    graph: Graph = None,
    memory_limit: MemoryLimit = None,
    data: Data = None,
    out: Out = None,
    like: Like = None,
    energy: Energy = False,
    energy_seconds: EnergySeconds = None,
    estimate_energy: EstimateEnergy = False,
    watts_busy: WattsBusy = None,
    watts_idle: WattsIdle = 0.0,
    no_ceilings: NoCeilings = False,
    live: LiveOption = False,
    no_report: NoReport = False,
    seed: Seed = 0,
    json: Json = False,
    given: DataOptions = PLAIN,
    partial: PartialOptions = WHOLE,
    means: Means = AS_IS,
) -> None:
    """Measure the time, memory and energy of a training step, op by op.

    The step runs many times. The run file is written continuously, so a stopped or killed run still opens. Available
    sensors are sampled. Unknown peak rates of the device are measured and stored. A page is written beside it.

    \b
    Examples:
    handheld profile mobilenet_v2 --precision half --only biases
    handheld profile resnet18 --size paper --energy --memory-limit 512MiB
    handheld profile --like mobilenet_v2-1.run
    """
    limit = nbytes(memory_limit)
    on = _placed(Wanted(what or "", size, on, batch, None, precision, data, given, partial, limit, seed), json)
    estimate = _checked_energy(on, energy, estimate_energy, watts_busy, watts_idle)
    options = (size, on, precision, batch, steps, graph, data, seed, given, partial, limit, means)
    with asked(like, Request(what or "", *options), what is not None) as (request, known):
        made = _prepared(request, json)
        _tell_and_measure(made, known, no_ceilings, json)
        with _kept(path := out or _free(made.name)), _shown(path, live and not json, json) as progress:
            run = measure(
                made.plan,
                made.batches,
                path,
                steps=request.steps,
                graph=made.graphs,
                energy=energy,
                energy_s=energy_seconds,
                estimate=estimate,
                progress=progress,
                code=made.code,
                settings={**made.settings, **({"like": str(like)} if like else {})},
            )
    with run:
        present(run, json, page=None if no_report else write_beside(run))


def _placed(wanted: Wanted, json: bool) -> str:
    """The device of the run. A repeated run has the one that was named."""
    if wanted.on == AUTO and not wanted.what:
        raise HandheldError("--on auto chooses for a model that is named. Try: WHAT instead of --like")
    return placed(wanted, json)[0]


@dataclass(frozen=True)
class _Prepared:
    """A plan with the batches for its graphs, and what the run file says about them."""

    plan: Plan
    batches: Any
    graphs: list[str]
    name: str
    code: Path | None
    settings: dict[str, Any]


def _prepared(request: Request, json: bool) -> _Prepared:
    with stages(json):
        spec = open_model(request.model, request.size, request.partial.at(request.on))
        batch_size = request.batch or spec.default_batch
        step, runs = _captured(spec, batch_size, request.seed, request.data, request.given)
        inputs = _inputs(step, runs, request.graph, request.seed)
        names = list(inputs)
        plan = planned(step, names, request)
    settings = {
        "what": spec.name,
        "batch": batch_size,
        "seed": request.seed,
        "data": "random" if runs.get(names[0]) is None else request.data or "example",
        "model": request.model,
        "size": request.size,
        "folder": str(Path.cwd()),
        # A repetition has the same variants again, wherever they came from.
        "repeat": dataclasses.replace(request, batch=batch_size, tuning=request.tuning is not False).to_json(),
    }
    return _Prepared(plan, inputs[names[0]] if len(names) == 1 else inputs, names, spec.name, spec.folder, settings)


def _tell_and_measure(made: _Prepared, known: Run | None, no_ceilings: bool, json: bool) -> None:
    """Say how the run differs from the one that it repeats, and measure ceilings that are not known."""
    tell(known, made.plan, made.code)
    _need_ceilings(made.plan, no_ceilings, json)


def _need_ceilings(plan: Plan, skip: bool, json: bool) -> None:
    """Measure the ceilings of the plan's device if they are not stored. A failure is reported, and the run goes on."""
    if skip or not plan.caps.takes_launches or ceilings.stored(plan.caps):
        return
    if not json:
        output.warn(
            f"the ceilings of {plan.device} are measured and stored, once; this takes some seconds. "
            "--no-ceilings skips it"
        )
    with stages(json) as stage:
        try:
            ceilings.measure(plan.device, lambda what, part: stage(f"ceilings: {what}, {part:.0%}"))
        except Exception as error:  # Drivers raise their own types of errors; the reason is shown.
            output.warn(f"the ceilings could not be measured: {type(error).__name__}: {error}")


def _captured(
    spec: ModelSpec, batch_size: int, seed: int, data: str | None, given: DataOptions
) -> tuple[Step, dict[str, Any]]:
    """The captured step, and the batch for each graph that trains."""
    step, batches = capture_example(spec, [batch_size], seed, data, given)
    frozen = check_frozen(step, spec, accept=True)  # The costs do not depend on the frozen values.
    if frozen:
        output.warn(frozen)
    example = batches[0] if batches else spec.example(batch_size)
    return step, dict(spec.runs(example) or [(name, example) for name in graphs_in_turn(step.graphs, batch_size)])


def _inputs(step: Step, runs: dict[str, Any], graph: str | None, seed: int) -> dict[str, Any]:
    """The inputs of each graph that will run. They are the same in every step."""
    names = [graph] if graph else list(runs)
    if names[0] not in step.graphs:
        raise HandheldError(f"there is no graph {graph!r}; the step has {', '.join(step.graphs)}")
    # A graph that is not part of training may take other shapes than the example.
    return {name: inputs_for(runs.get(name), step.graphs[name], seed) for name in names}


@contextlib.contextmanager
def _kept(path: Path) -> Iterator[None]:
    """After Ctrl-C or a lost target, say how much of the run is in the file. A file without a step is removed."""
    known = path.exists()
    try:
        yield
    except KeyboardInterrupt:
        if known or not path.exists():
            raise
        done = _done(path)
        if not done:
            raise KeyboardInterrupt("interrupted before the first step; nothing was measured") from None
        raise KeyboardInterrupt(f"interrupted; {done}. Try: handheld show {path}") from None
    except TargetLost as error:
        if known or not path.exists():
            raise
        done = _done(path)
        kept = f"{done}. Try: handheld show {path}" if done else "Nothing was measured yet"
        raise error.add(kept) from error


def _done(path: Path) -> str:
    """How much of a run is in its file. A file without a step is removed, and the answer is empty."""
    with open_run(path) as run:
        count = len(run.steps())
    if not count:
        path.unlink()
        return ""
    return f"{path} holds {output.count(count, 'step')}"


def _checked_energy(on: str, energy: bool, wanted: bool, busy: float | None, idle: float) -> Estimate | None:
    """The estimate, if one is wanted. Raises an error before the capture if energy cannot be measured or estimated."""
    if not wanted:
        if busy is not None or idle:
            raise HandheldError("--watts-busy and --watts-idle need --estimate-energy")
        if energy:
            need_power(on)
        return None
    if busy is None:
        raise HandheldError(
            "an estimate needs the power of the device. Try: --watts-busy W, and --watts-idle W if you know it"
        )
    if energy:
        need_power(on)
    return Estimate(busy, idle)


def _free(name: str) -> Path:
    """NAME-1.run, or the first number whose file does not exist."""
    stem = Path(name).stem.replace(":", "-") or "run"
    return next(path for n in range(1, 1_000_000) if not (path := Path(f"{stem}-{n}.run")).exists())


@contextlib.contextmanager
def _shown(path: Path, live: bool, quiet: bool) -> Iterator[Progress | None]:
    """On a terminal, show a progress line or, with --live, the tables of the run."""
    if quiet or not output.err.is_terminal:
        yield lambda done, count, what: report(what, done, count)
    elif live:
        with watching(path):
            yield None
    else:
        with stages(quiet) as stage:
            yield lambda done, count, what: stage(what, done, count)
