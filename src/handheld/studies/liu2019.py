"""The 2019 study: what it runs, and its result as one document.

    results folder (bench) ──► rows (observations) ──► answers (findings2019) ──► result, page

`study` runs a matrix of workloads and batches with the runner of `handheld bench`, so it resumes, cools and
isolates runs in the same way. `result` reads the folder and needs no device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import handheld
from handheld import bench, cache, suite
from handheld.analyse.busy import warning_of_runs
from handheld.analyse.run import open_run
from handheld.device import canonical
from handheld.errors import ResultsError, RunFileError, StudyError
from handheld.studies import findings2019
from handheld.studies.observations import absent_power, observe

FORMAT, VERSION = "handheld study liu2019", 1
RESULT, PAGE = "liu2019.json", "liu2019.html"
BATCHES = (1, 4, 16, 64)
SECONDS = 4.0  # Seconds per run: six windows of five readings, for a sensor that reads every 100 ms.
QUICK_SECONDS, QUICK_BATCHES = 2.0, (4, 64)
ALL = tuple(name for name, workload in suite.WORKLOADS.items() if "liu2019" in workload.used_in)
#: The ten that trained on the paper's device, which had too little memory for the other six.
TRAINED = tuple(name for name in ALL if "unfit" not in suite.WORKLOADS[name].tags)
QUICK = ("squeezenet", "alexnet", "char_cnn", "dqn")

Row = dict[str, Any]


def workloads(which: str | Sequence[str]) -> tuple[str, ...]:
    """`trained` (the ten), `all` (the sixteen), `quick`, or names. Names may also be of workloads outside the study."""
    if isinstance(which, str):
        known = {"trained": TRAINED, "quick": QUICK, "all": ALL}
        if which not in known:
            raise StudyError(f"there is no set of workloads {which!r}. Try: {', '.join(known)}")
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
    """Run the cases that the folder does not have yet. Yields one row of the benchmark per run."""
    matrix = bench.Matrix(tuple(names), (device,), tuple(batches), size)
    return bench.run(matrix, folder, settings or bench.Settings(seconds=SECONDS), retry=retry, tell=tell)


def domain(name: str) -> str:
    """The groups that findings compare: recurrent, or the workload's own domain."""
    if name not in suite.WORKLOADS:
        return ""
    workload = suite.WORKLOADS[name]
    return "recurrent" if "recurrent" in workload.tags else workload.domain


def observed(results: bench.Results, row: bench.Row) -> Row:
    """A row of the benchmark with what the study observes in its run file, or why there is nothing."""
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
    """The whole study from a results folder: rows, answers, and the machine."""
    results = bench.open_results(folder)
    device = canonical(device) if device else next((row["device"] for row in results.rows), None)
    ran = [row for row in results.rows if row["device"] == device]
    if device is None or not ran:
        raise ResultsError(
            f"{folder} holds no measured runs yet{f' on {device}' if device else ''}. Try: run the same command again"
        )
    last = datetime.fromisoformat(max(row["began"] for row in ran)).astimezone(timezone.utc)
    rows = [observed(results, row) for row in ran]
    rows.sort(key=lambda row: (_place(row["workload"]), row["batch"] or 0))
    absent: dict[str, str] = {}
    for row in rows:
        absent |= row.pop("sensors_absent", {})
    count = sum(case["device"] == device for case in results.info["cases"])
    return {
        "format": FORMAT,
        "version": VERSION,
        "handheld": handheld.__version__,
        "date": last.strftime("%Y-%m-%d %H:%M UTC"),  # The date of the last run, not of the page.
        "device": device,
        "caps": results.info["devices"].get(device, {}),
        "machine": results.info["machine"],
        "versions": results.info["versions"],
        "settings": results.info["settings"],
        "runs": count,
        "sensors_absent": absent,
        "disturbed": warning_of_runs(rows, results.info["machine"]),
        "rows": rows,
        "answers": [answer.to_json() for answer in findings2019.answers(rows)],
    }


def _place(name: str) -> int:
    return ALL.index(name) if name in ALL else len(ALL)


def save(folder: str | Path, document: Row) -> Path:
    """Write the result next to the runs, completely or not at all."""
    path = Path(folder) / RESULT
    cache.write_json(path, document)
    return path


def load(path: str | Path) -> Row:
    """Read a saved result, or make the result of a results folder again."""
    path = Path(path)
    if path.is_dir():
        return result(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise StudyError(f"{path} is not a result of this study, or it is damaged: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StudyError(f"{path} is not a result of handheld study liu2019")
    if document.get("version") != VERSION:
        raise StudyError(
            f"{path} is a result of version {document.get('version')!r}; this "
            f"Handheld reads version {VERSION}. Try: the folder of its runs instead of the "
            "file"
        )
    document["device"] = canonical(str(document.get("device", "")))
    return document
