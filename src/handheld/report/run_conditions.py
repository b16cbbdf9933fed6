"""The conditions of a run, for its page: device, versions, settings, load of other processes, notes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from handheld.analyse.run import Run
from handheld.units import count, size

Pairs = list[tuple[str, str]]


def conditions(run: Run) -> dict[str, object]:
    return {
        "groups": [[name, pairs] for name, pairs in _groups(run) if pairs],
        "sensors": [
            [row.source, row.channel, row.quantity, row.unit, row.n, row.mean, row.min, row.max, int(row.counter)]
            for row in run.samples()
        ],
        "absent": sorted((str(k), str(v)) for k, v in (run.meta.get("sensors_absent") or {}).items()),
        "notes": [[note.kind, note.text] for note in run.notes()],
    }


def _groups(run: Run) -> list[tuple[str, Pairs]]:
    meta = run.meta
    return [
        ("Run", _run(run)),
        # A page is passed on, so it does not name the user's folder.
        ("Settings", _pairs({k: v for k, v in (meta.get("settings") or {}).items() if k != "folder"})),
        # What is computed again to fit is said in one line instead of value by value.
        ("Plan", _pairs({**(meta.get("plan_options") or {}), "fit": meta.get("fit") or "as it is"})),
        ("Device", _pairs(meta.get("caps"))),
        (f"Machine ({meta['target']})" if meta.get("target") else "Machine", _machine(meta.get("machine"))),
        ("Host that planned the steps", _machine(meta.get("host"))),
        ("Versions", _pairs(meta.get("versions"))),
        ("Cost of measuring", _overhead(run)),
    ]


def _run(run: Run) -> Pairs:
    begun, code = run.meta.get("begun_unix_ns"), run.meta.get("code") or {}
    when = datetime.datetime.fromtimestamp(begun * 1e-9, datetime.timezone.utc) if begun else None
    others = run.others()
    changed = " with uncommitted changes" if code.get("changed") else ""
    rows = [
        ("file", run.path.name),
        ("began", when.strftime("%Y-%m-%d %H:%M:%S UTC") if when else ""),
        ("status", str(run.meta.get("status", "unknown"))),
        ("code", f"{code['commit'][:12]}{changed}" if code.get("commit") else ""),
        ("other processes", f"{others.share:.0%} of the {count(others.count, 'core')}" if others else "not known"),
        ("error of the clocks", f"± {run.clock.error_ns * 1e-3:.2f} µs"),
        ("clock of the run", _clock(run.meta.get("clock"))),
    ]
    return [(name, value) for name, value in rows if value]


def _clock(clock: Mapping[str, object] | None) -> str:
    """Whose clock the times are by, if it is not that of the host; and how well the two are compared."""
    if not clock:
        return ""
    error = clock.get("error_ns")
    return (
        f"that of {clock.get('of')}, compared with the host's to ± {error * 1e-3:.0f} µs"
        if isinstance(error, int)
        else ""
    )


def _machine(machine: Mapping[str, object] | None) -> Pairs:
    shown = dict(machine or {})
    kinds = shown.pop("core_kinds", None)
    if isinstance(kinds, Mapping):
        shown["processors"] = ", ".join(dict.fromkeys(map(str, kinds.values())))
    return _pairs(shown)


def _pairs(values: Mapping[str, object] | None) -> Pairs:
    """Names and values as text. Bytes get a unit; nested values are pairs on one line."""
    rows = []
    for name, value in (values or {}).items():
        if value is None or value in ("", [], {}):
            continue
        label = name.replace("_", " ")
        if name.endswith("_bytes") and isinstance(value, (int, float)):
            rows.append((label.removesuffix(" bytes"), size(value)))
        elif isinstance(value, bool):
            rows.append((label, "yes" if value else "no"))
        elif isinstance(value, Mapping):
            inner = _pairs({str(key): one for key, one in value.items() if key != "folder"})
            rows += [(label, ", ".join(f"{key}: {text}" for key, text in inner))] if inner else []
        elif isinstance(value, (list, tuple)):
            rows.append((label, ", ".join(map(str, value))))
        else:
            rows.append((label, str(value)))
    return rows


def _overhead(run: Run) -> Pairs:
    cost = run.summary().overhead
    rows = []
    if cost.recording_share is not None:
        rows.append(("recording", f"{cost.recording_share:.1%} of the run"))
    if cost.recorded_over_others is not None:
        rows.append(("a recorded step", f"{cost.recorded_over_others:.2f} × the time of others"))
    if cost.sampler is not None:
        rows.append(("sensors", f"{cost.sampler.cpu_share:.1%} of a core"))
    return rows
