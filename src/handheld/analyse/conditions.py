"""What else is different about two runs: device, driver, versions, code, plan and data. It may explain what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from handheld.analyse import judge

if TYPE_CHECKING:
    from handheld.analyse.run import Run

#: Entries of `meta` and the fields of each that are compared. Without fields, the whole entry is compared.
COMPARED: Mapping[str, tuple[str, ...]] = {
    "device": (),
    "caps": ("name", "driver", "features"),
    "settings": ("what", "size", "batch", "data", "seed", "watch"),
    "plan_options": ("precision", "memory_limit_bytes", "isolate", "naive"),
    "arithmetic": (),
    "versions": (),
    "kernels": (),
    "plan_hash": (),
    "code": ("commit", "changed"),
    "target": (),
    "machine": ("system", "release", "machine", "cores"),
}
NAMES = {"caps name": "processor", "caps driver": "driver", "caps features": "compiler features", "plan_hash": "plan"}

UNKNOWN, HERE = "not recorded", "this machine"


def differences(a: Run, b: Run) -> list[str]:
    """One text per condition that differs, as `name: value of a / value of b`."""
    return meta_differences(a.meta, b.meta)


def meta_differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """The same for the entries of `meta` of two runs."""
    return list(_differences(a, b))


def _differences(a: Mapping[str, object], b: Mapping[str, object]) -> Iterator[str]:
    for key, fields in COMPARED.items():
        left, right = a.get(key), b.get(key)
        if not isinstance(left, Mapping) and not isinstance(right, Mapping):
            if left != right:
                absent = HERE if key == "target" else UNKNOWN
                yield f"{NAMES.get(key, key)}: {_said(left, absent)} / {_said(right, absent)}"
            continue
        ours, theirs = (side if isinstance(side, Mapping) else {} for side in (left, right))
        for field in fields or sorted({*ours, *theirs}):
            if ours.get(field) != theirs.get(field):
                name = NAMES.get(f"{key} {field}", f"kernels of {field}" if key == "kernels" else field)
                yield f"{name}: {_said(ours.get(field))} / {_said(theirs.get(field))}"


def _said(value: object, absent: str = UNKNOWN) -> str:
    if value is None:
        return absent
    return str(value)[:12] if isinstance(value, str) and len(value) in (40, 64) else f"{value}"


def too_few(ops: int, a: Run, b: Run, windows: tuple[int, int]) -> str:
    """Why some ops were not judged, and what to do. "" if there are none. `windows` are those of the runs."""
    if not ops:
        return ""
    named = [(run, count) for run, count in zip((a, b), windows, strict=True) if count < judge.LEAST]
    text = f"{ops} {'op was' if ops == 1 else 'ops were'} not judged: "
    if not named:
        return f"{text}they ran in fewer than {judge.LEAST} windows of one run. Try: more steps"
    said = " and ".join(f"{Path(run.path).name} has {n} {'window' if n == 1 else 'windows'}" for run, n in named)
    # One window more than needed. Windows come at equal cost, so their number grows with that of the steps.
    need = max(len(run.steps()) * (judge.LEAST + 1) / max(count, 1) for run, count in named)
    steps = max(200, -(-int(need) // 100) * 100)
    return f"{text}{said}, {judge.LEAST} are needed. Try: handheld profile --steps {steps}"


def warnings(a: Run, b: Run) -> list[str]:
    """What makes the comparison doubtful: a busy machine, a run that did not end, no op times."""
    texts = []
    for name, run in (("a", a), ("b", b)):
        others = run.others()
        if others is not None and others.warning:
            texts.append(f"{name}: {others.warning}")
        if not run.steps():
            texts.append(f"{name}: the run has no steps")
        elif not run.timed:
            texts.append(f"{name}: the run has no op times, so ops are not compared. Try: more steps")
        if not run.complete:
            texts.append(f"{name}: the run has not ended normally (status: {run.meta.get('status', 'unknown')})")
    return texts
