"""`handheld plan --out FILE.plan` and `handheld plan FILE.plan`: writes plan files, and says what is in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handheld.cli import output
from handheld.device import DeviceCaps
from handheld.errors import HandheldError, OutOfMemory
from handheld.plan import file
from handheld.plan.file_format import NO_VALUE, Content, Section
from handheld.plan.plan import Plan
from handheld.units import count
from handheld.units import size as size_text

SUFFIX = ".plan"


def check_out(out: Path | None, batches: Sequence[int]) -> None:
    """Refuses what cannot be written, before anything is captured."""
    if out is None:
        return
    if out.suffix != SUFFIX:
        raise HandheldError(f"--out {out}: the name of a plan file ends in {SUFFIX}. Try: --out {out.name}{SUFFIX}")
    if len(batches) != 1:
        sizes = ", ".join(str(n) for n in batches)
        raise HandheldError(f"--out takes a plan for one batch size, not for {sizes}. Try: --batch {batches[0]}")
    if not out.absolute().parent.is_dir():
        raise HandheldError(f"--out {out}: there is no folder {out.absolute().parent}. Try: mkdir {out.parent}")


def write(plan: Plan, out: Path | None, why: str) -> None:
    """Writes the file, if one is wanted. `why` says that the plan does not fit, or is empty."""
    if out is not None and why:
        raise OutOfMemory(f"{out} was not written: {why}. Try: a smaller --batch")
    if out is not None:
        file.write(plan, out)


def present(out: Path) -> None:
    output.out.print(f"\n{_summary(out, facts(file.read(out)))}", markup=False, soft_wrap=True)


def show(path: str, device: str | None, caps: DeviceCaps | None, json: bool) -> None:
    """Prints what is in a plan file, after all checks. It must be for the device, if one is given."""
    content = file.read(path)
    if device is not None and caps is not None and (note := file.check_device(content, path, device, caps)):
        output.warn(note)
    found = facts(content)
    if json:
        output.print_json(found)
        return
    output.out.print(_summary(Path(path), found), markup=False, soft_wrap=True)
    for graph in found["graphs"]:
        line = f"  {graph['name']}: {count(graph['launches'], 'launch')} of {count(graph['nodes'], 'op')}"
        output.out.print(f"{line}; inputs {', '.join(graph['inputs']) or 'none'}", markup=False, soft_wrap=True)


def facts(content: Content) -> dict[str, Any]:
    """The content of a plan file as plain data."""
    tables = content.tables
    slots = tables[Section.SLOTS]
    inputs = [content.text(row["name"]) for row in tables[Section.INPUTS]]
    graphs = []
    for graph in tables[Section.GRAPHS]:
        first, given = int(graph["first_inputs"]), int(graph["inputs"])
        graphs.append(
            {
                "name": content.text(graph["name"]),
                "nodes": int(graph["nodes"]),
                "launches": int(graph["launches"]),
                "copies": int(graph["copies"]),
                "inputs": inputs[first : first + given],
            }
        )
    return {
        "device": content.device,
        "bytes": content.nbytes,
        "memory_bytes": int(tables[Section.SEGMENTS]["bytes"].sum()),
        "programs": len(tables[Section.PROGRAMS]),
        "slots": len(slots),
        "values": int((slots["value"] != NO_VALUE).sum()),
        "graphs": graphs,
        "notes": content.notes,
    }


def _summary(path: Path, found: dict[str, Any]) -> str:
    missing = found["slots"] - found["values"]
    values = "with all values" if not missing else f"without the values of {count(missing, 'slot')}"
    return (
        f"{path}: {size_text(found['bytes'])}, for {found['device']}: {count(found['programs'], 'program')}, "
        f"{count(sum(graph['launches'] for graph in found['graphs']), 'launch')}, "
        f"{size_text(found['memory_bytes'])} of memory, {values}"
    )
