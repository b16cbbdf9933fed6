"""`handheld bench --compare`, `--merge` and `--publish`: what is done with results folders that exist."""

from __future__ import annotations

from pathlib import Path

import handheld.bench as runner
from handheld.bench.judged import judge_rows
from handheld.cli import bench_tables, output
from handheld.errors import HandheldError
from handheld.fleet.folder import PAGE, Summary, is_fleet_folder
from handheld.fleet.page import fleet_page
from handheld.fleet.publish import plain_parts, publish
from handheld.report.document import write_document

COMPARE, MERGE, PUBLISH = "--compare", "--merge", "--publish"
MERGED = Path("bench-results")


def choice(compare: bool, merge: bool, publish: bool) -> str:
    """The option that was given. Raises HandheldError if there are two."""
    wanted = [name for name, given in ((COMPARE, compare), (MERGE, merge), (PUBLISH, publish)) if given]
    if len(wanted) > 1:
        raise HandheldError(f"{' and '.join(wanted)} cannot be combined. Try: one of them")
    return wanted[0]


def use(names: list[str], option: str, out: Path | None, json: bool) -> None:
    """Carry out one of the three. `out` is the folder to write, if one was given."""
    folders = [Path(name) for name in names]
    if option == COMPARE:
        _compare(folders, json)
    elif option == PUBLISH:
        _publish(folders, out, json)
    elif any(is_fleet_folder(folder) for folder in folders):
        if len(folders) < 2:
            raise HandheldError("--merge takes two results folders or more")
        _written(publish(folders, out or MERGED), len(folders), json)
    else:
        _merge(folders, out or MERGED, json)


def _compare(folders: list[Path], json: bool) -> None:
    opened = [runner.open_results(folder) for folder in folders]
    if len(opened) != 2:
        raise HandheldError(f"--compare takes two results folders, not {len(opened)}")
    a, b = opened
    comparison = judge_rows(a, b, runner.compare(a, b)).comparison
    output.print_json(comparison) if json else bench_tables.present_compared(comparison)


def _publish(folders: list[Path], out: Path | None, json: bool) -> None:
    if len(folders) != 1:
        raise HandheldError(
            f"--publish takes one results folder, not {len(folders)}. Try: --merge for several of them"
            if folders
            else "--publish takes a results folder. Try: handheld bench --publish bench-results --out shared"
        )
    (folder,) = folders
    _written(publish(folders, out or folder.with_name(f"{folder.name}-published")), 1, json)


def _written(page: Path, count: int, json: bool) -> None:
    if json:
        output.print_json({"folder": str(page.parent), "page": str(page)})
        return
    output.out.print(output.grid([("wrote", output.path(page.parent)), ("page", output.path(page))]))
    if count == 1:
        output.warn("names of devices and workloads are as you chose them. Look at the page before you share it")


def _merge(folders: list[Path], out: Path, json: bool) -> None:
    """Merge ordinary results folders. Their run files are kept."""
    merged = runner.merge([runner.open_results(folder) for folder in folders], out)
    summary: Summary = {"what": "bench", "created": merged.info["created"], "handheld": merged.info["handheld"]}
    page = out / PAGE
    write_document(fleet_page(summary, plain_parts(out)), page)
    if json:
        output.print_json({"folder": str(merged.folder), "rows": merged.rows, "page": str(page)})
    else:
        rows = output.count(len(merged.rows), "row")
        output.out.print(f"{merged.folder} holds {rows} from {len(folders)} folders", soft_wrap=True)
        output.out.print(output.grid([("page", output.path(page))]))
