"""`handheld advise`: what to change about a step, what that would gain, and whether it does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from handheld.analyse.advise import RULES, advice
from handheld.analyse.roofline import Ceiling
from handheld.analyse.rules.base import Advice, said
from handheld.analyse.run import Run, open_run
from handheld.cli import output
from handheld.cli.options import Json
from handheld.cli.run_answers import answer
from handheld.cli.stages import stages
from handheld.cli.tables import Column, table
from handheld.cli.trying import Trial, try_advice
from handheld.errors import HandheldError

SECONDS = 8.0

COLUMNS = (Column("", name_of=True), Column("before"), Column("after"), Column("gain"), Column("range"))
#: The facts that the rules look at, and how a run gets them.
FACTS = (
    ("op times", "handheld profile MODEL --steps 50"),
    ("the ceilings of its device", "handheld profile MODEL, without --no-ceilings"),
    ("how to repeat it", "handheld profile MODEL"),
)


def advise(
    file: Annotated[Path, typer.Argument(metavar="RUN", help=("A run file of handheld profile."))],
    try_it: Annotated[
        bool, typer.Option("--try", help=("Make the change, measure it beside the run's own conditions, and compare."))
    ] = False,
    rule: Annotated[
        str | None, typer.Option("--rule", metavar="NAME", help=(f"Only this rule: {', '.join(RULES)}."))
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.5, metavar="S", help=("With --try: how long to measure."))
    ] = SECONDS,
    json: Json = False,
) -> None:
    """Say what to change about a training step, best first, and what it would gain.

    Each rule looks at one bottleneck of the run: what was seen, what it costs, what to change, and the
    gain, computed from this run. --try makes the first change (or that of --rule). The step before and
    after the change take turns in one process, on the device of the run (also a phone or another machine),
    and the promise is printed beside the measurement. Advice to tune leaves its tuning record behind, as
    handheld tune does.

    \b
    Examples:
    handheld advise mobilenet_v2-1.run
    handheld advise mobilenet_v2-1.run --try
    handheld advise mobilenet_v2-1.run --try --rule tune
    """
    if rule is not None and rule not in RULES:
        raise HandheldError(f"there is no rule {rule!r}. Try one of: {', '.join(RULES)}")
    with open_run(file) as run:
        given = [item for item in advice(run) if rule in (None, item.rule)]
        trial = None
        if try_it:
            if not given:
                what = f"the rule {rule} does not apply" if rule else "no rule applies"
                raise HandheldError(f"{what} to this run, so there is nothing to try. {_way_out(run, file, rule)}")
            chosen = given[0] if rule else next((item for item in given if item.to), given[0])
            with stages(json) as stage:
                trial = try_advice(run, chosen, seconds, stage)
        if json:
            output.print_json(
                {"advice": [item.to_json() for item in given], "trial": None if trial is None else trial.to_json()}
            )
            return
        if trial is None:
            output.out.print(answer(run))
            if not given:
                what = f"The rule {rule} does not apply to this run" if rule else "No rule applies"
                known = "" if rule or _missing(run) else ": nothing clear to gain"
                output.out.print()
                output.out.print(f"{what}{known}. {_way_out(run, file, rule)}")
            _present(given)
        else:
            _present([item for item in given if item.rule == trial.rule])
            _compare(trial)


def _missing(run: Run) -> list[tuple[str, str]]:
    """The facts that the run does not hold, though rules need them, each with a way to get it."""
    settings = run.meta.get("settings") or {}
    known = (run.parts() is not None, Ceiling.of(run.meta.get("ceilings")) is not None, bool(settings.get("repeat")))
    return [fact for fact, held in zip(FACTS, known, strict=True) if not held]


def _way_out(run: Run, file: Path, rule: str | None) -> str:
    """What to do about a run without advice."""
    if rule and advice(run):
        return f"Try: handheld advise {file}, which lists the rules that do"
    if missing := _missing(run):
        return f"The run does not hold {' or '.join(fact for fact, _ in missing)}. Try: {missing[0][1]}"
    return f"Try: handheld show {file}, which says where the time of its step goes"


def _present(given: list[Advice]) -> None:
    for number, item in enumerate(given, 1):
        output.out.print()
        head = Table.grid()
        head.add_row(f"{number}. ", Text.assemble((item.rule, "bold"), f"  {item.gain.text}"))
        output.out.print(head)
        costs = f"{item.costs_ms:.3g} ms per step" if item.costs_ms else ""
        rows = [("   seen", item.seen), ("   costs", costs), ("   change", item.change), ("   effect", item.effect)]
        if item.to is None:
            rows.append(("   not tried", item.why_not))
        rows.append(("   command", item.command))
        output.out.print(output.grid([(name, value) for name, value in rows if value]))


def _compare(trial: Trial) -> None:
    turns = trial.turns
    rows = [
        (
            "promised",
            trial.promised_before,
            trial.promised_after,
            trial.promised,
            trial.promised_low,
            trial.promised_high,
        ),
        ("measured", trial.before, trial.after, trial.measured, trial.measured_low, trial.measured_high),
    ]
    output.out.print()
    output.out.print(
        table(
            COLUMNS,
            [
                (
                    name,
                    said(before, trial.quantity),
                    said(after, trial.quantity),
                    f"{factor:.2f}x",
                    f"{low:.2f} to {high:.2f}",
                )
                for name, before, after, factor, low, high in rows
            ],
        )
    )
    output.out.print(
        f"The measured gain {trial.verdict}. A step takes {turns.after_ms:.3g} ms instead of "
        f"{turns.before_ms:.3g} ms (in {output.count(turns.rounds, 'turn')}), and its plan "
        f"{output.size(trial.after_bytes)} instead of {output.size(trial.before_bytes)}."
    )
