"""The 2019 study: what it runs, and its result as one document.

    results folder (benchmark) ──► rows (observations) ──► answers (findings2019) ──► result, page

`study` runs a matrix of workloads and batches through the runner of `handheld bench`, so that it
resumes, cools and isolates as that does; `result` reads the folder, without a device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import handheld
from handheld import bench, cache, suite
from handheld.analyse.run import open_run
from handheld.device import canonical
from handheld.errors import ResultsError, RunFileError, StudyError
from handheld.studies import findings2019
from handheld.studies.observations import absent_power, observe

FORMAT, VERSION = "handheld study liu2019", 1
RESULT, PAGE = "liu2019.json", "liu2019.html"
BATCHES = (1, 4, 16, 64)
SECONDS = 4.0  # of steps a run: six stretches of five ticks of a sensor that ticks every 100 ms
QUICK_SECONDS, QUICK_BATCHES = 2.0, (4, 64)
ALL = tuple(name for name, one in suite.WORKLOADS.items() if "liu2019" in one.used_in)
#: the ten that trained on the paper's device; for the other six it had too little memory
TRAINED = tuple(name for name in ALL if "unfit" not in suite.WORKLOADS[name].tags)
QUICK = ("squeezenet", "alexnet", "char_cnn", "dqn")

Row = dict[str, Any]


def workloads(which: str | Sequence[str]) -> tuple[str, ...]:
    """`trained` (the ten), `all` (the sixteen), `quick`, or names. Names need not be of the study:
    any workload can be asked the same questions."""
    if isinstance(which, str):
        known = {"trained": TRAINED, "quick": QUICK, "all": ALL}
        if which not in known:
            raise StudyError(f"{which!r} is no set of workloads: there are {', '.join(known)}")
        return known[which]
    return tuple(which)


def study(
    names: Sequence[str],
    device: str,
    batches: Sequence[int],
    folder: str | Path,
    *,
    size: str = "small",
    settings: bench.Settings | None = None,
    retry: bool = False,
    tell: Callable[[bench.Progress], None] | None = None,
) -> Iterator[bench.Row]:
    """Runs what the folder does not have yet; a row of the benchmark for each."""
    matrix = bench.Matrix(tuple(names), (device,), tuple(batches), size)
    return bench.run(matrix, folder, settings or bench.Settings(seconds=SECONDS), retry=retry, tell=tell)


def domain(name: str) -> str:
    """What findings tell apart: recurrent, or the workload's own domain."""
    if name not in suite.WORKLOADS:
        return ""
    workload = suite.WORKLOADS[name]
    return "recurrent" if "recurrent" in workload.tags else workload.domain


def observed(results: bench.Results, row: bench.Row) -> Row:
    """A row of the benchmark as the study sees it: observed, or why not."""
    base = {
        "workload": row["workload"],
        "domain": domain(row["workload"]),
        "batch": row["batch"],
        "size": row["size"],
        "status": row["status"],
        "why": row["reason"],
        "planned_bytes": row.get("planned_bytes"),
    }
    path = results.run_path(row)
    if row["status"] != "trained" or path is None:
        return base
    try:
        with open_run(path) as run:
            return {
                **base,
                **observe(run, row["workload"], domain(row["workload"])),
                "sensors_absent": absent_power(run),
            }
    except RunFileError as error:
        return {**base, "status": "failed", "why": str(error)}


def result(folder: str | Path, device: str | None = None) -> Row:
    """The whole study from a results folder: rows, answers, and what it was measured on."""
    results = bench.open_results(folder)
    device = canonical(device) if device else next((row["device"] for row in results.rows), None)
    ran = [row for row in results.rows if row["device"] == device]
    if device is None or not ran:
        raise ResultsError(
            f"nothing was measured yet in {folder}{f' on {device}' if device else ''}. Try: the same command again"
        )
    last = datetime.fromisoformat(max(row["began"] for row in ran)).astimezone(timezone.utc)
    rows = [observed(results, row) for row in ran]
    rows.sort(key=lambda row: (_place(row["workload"]), row["batch"] or 0))
    absent: dict[str, str] = {}
    for row in rows:
        absent |= row.pop("sensors_absent", {})
    wanted = sum(case["device"] == device for case in results.info["cases"])
    return {
        "format": FORMAT,
        "version": VERSION,
        "handheld": handheld.__version__,
        "date": last.strftime("%Y-%m-%d %H:%M UTC"),  # of the last run, not of the page
        "device": device,
        "caps": results.info["devices"].get(device, {}),
        "machine": results.info["machine"],
        "versions": results.info["versions"],
        "settings": results.info["settings"],
        "runs": wanted,
        "sensors_absent": absent,
        "disturbed": findings2019.disturbed(rows),
        "rows": rows,
        "answers": [one.to_json() for one in findings2019.answers(rows)],
    }


def _place(name: str) -> int:
    return ALL.index(name) if name in ALL else len(ALL)


def save(folder: str | Path, made: Row) -> Path:
    """Beside the runs, whole or not at all."""
    path = Path(folder) / RESULT
    cache.write_json(path, made)
    return path


def load(path: str | Path) -> Row:
    """A result that was saved, or a results folder, read anew."""
    path = Path(path)
    if path.is_dir():
        return result(path)
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise StudyError(f"{path} is no result of this study, or damaged: {error}") from None
    if not isinstance(made, dict) or made.get("format") != FORMAT:
        raise StudyError(f"{path} is no result of handheld study liu2019")
    if made.get("version") != VERSION:
        raise StudyError(
            f"{path} has version {made.get('version')!r} of the result, and this "
            f"Handheld reads {VERSION}. Try: its folder of runs instead of the "
            "file, which is read anew"
        )
    made["device"] = canonical(str(made.get("device", "")))
    return made
