"""Judges the rows of two results folders: by their run files where both have one, else by the spread of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from handheld.analyse.compare import FASTER, SAME, SLOWER, compare_two
from handheld.analyse.compare import Pair as RunPair
from handheld.analyse.run import open_run
from handheld.bench.folder import Results
from handheld.bench.shapes import Comparison, Judged, Pair, Row
from handheld.errors import RunFileError

RUN_FILES, SPREAD = "run files", "spread"


@dataclass(frozen=True)
class Rows:
    """The rows of two folders beside each other, and by key what their run files say and why some were not read."""

    comparison: Comparison
    runs: Mapping[str, RunPair]
    unread: Mapping[str, str]

    def slowdowns(self, above: float) -> list[tuple[str, str, float]]:
        """What is slower by more than the share `above` and by more than noise: (key, name, ratio)."""
        slow = [(key, name, ratio) for key, pair in self.runs.items() for name, ratio in pair.slowdowns(above)]
        for row in self.comparison["rows"]:
            judged = row["judged"]
            if judged and judged["by"] == SPREAD and judged["verdict"] == SLOWER and judged["ratio"] > 1 + above:
                slow.append((row["key"], "step", judged["ratio"]))
        return slow

    def gaps(self) -> list[tuple[str, str]]:
        """The rows that cannot be compared though at least one of the folders trained them, with the reason."""
        return [
            (row["key"], row["why"])
            for row in self.comparison["rows"]
            if row["why"] and any(side and side["status"] == "trained" for side in (row["a"], row["b"]))
        ]


def judge_rows(a: Results, b: Results, comparison: Comparison) -> Rows:
    """The comparison of two folders with what the run files of its rows say."""
    runs, unread = _compare_run_files(a, b)
    rows = [_with_run(row, runs.get(row["key"])) for row in comparison["rows"]]
    return Rows({**comparison, "rows": rows}, runs, unread)


def by_spread(a: Row | None, b: Row | None) -> Judged | None:
    """Judges the steps of two rows by how much their own steps vary. None if a row does not say that."""
    if a is None or b is None:
        return None
    rows = [row for row in (a, b) if row["status"] == "trained"]
    known = [row.get(name) for row in rows for name in ("step_ms", "step_p5_ms", "step_p95_ms")]
    figures = [cast(float, value) for value in known if value]
    if len(figures) < 6:
        return None
    before, a_low, a_high, after, b_low, b_high = figures
    return _judged(after / before, b_low / a_high, b_high / a_low, SPREAD)


def _judged(ratio: float, low: float, high: float, by: str) -> Judged:
    verdict = SLOWER if low > 1 else FASTER if high < 1 else SAME
    return {"ratio": ratio, "low": low, "high": high, "verdict": verdict, "by": by}


def not_judged(a: Row | None, b: Row | None) -> str:
    """Why the times of two rows cannot be compared, or ""."""
    if a is None or b is None:
        return "only in b" if a is None else "only in a"
    failed = [f"{name} {row['status']}" for name, row in (("a", a), ("b", b)) if row["status"] != "trained"]
    if failed:
        return " and ".join(failed)
    return "" if by_spread(a, b) else "too few steps to judge. Try: a longer --seconds"


def _compare_run_files(a: Results, b: Results) -> tuple[dict[str, RunPair], dict[str, str]]:
    """What the run files of rows that trained in both folders say, by key, and why others were not compared."""
    right = {row["key"]: row for row in b.rows}
    compared: dict[str, RunPair] = {}
    unread: dict[str, str] = {}
    for row in a.rows:
        other = right.get(row["key"])
        if other is None or any(one["status"] != "trained" for one in (row, other)):
            continue
        paths = a.run_path(row), b.run_path(other)
        if paths[0] is None or paths[1] is None:
            missing = " and ".join(name for name, path in zip("ab", paths, strict=True) if path is None)
            unread[row["key"]] = f"no run file in {missing}"
            continue
        try:
            with open_run(paths[0]) as first, open_run(paths[1]) as second:
                compared[row["key"]] = compare_two(first, second)
        except RunFileError as error:
            unread[row["key"]] = str(error)
    return compared, unread


def _with_run(row: Pair, runs: RunPair | None) -> Pair:
    """The row, judged by its run files if they have enough steps."""
    timing = None if runs is None else runs.sample if runs.per_sample else runs.step
    if timing is None or timing.low is None or timing.high is None:
        return row
    judged: Judged = {
        "ratio": timing.ratio,
        "low": timing.low,
        "high": timing.high,
        "verdict": timing.verdict,
        "by": RUN_FILES,
    }
    return {**row, "judged": judged, "why": ""}
