"""Takes the first piece of advice for each workload, tries it, and puts the promise beside the measurement.

    python bench/advice.py [MODELS…] [--on opencl] [--size paper] [--batch N] [--steps 40] [--seconds 6]
                           [--tune-seconds 30] [--minutes 5] [--out FILE.json]
    python bench/advice.py --show FILE.json

Each workload is profiled, `analyse/advise.py` gives its advice, and the first piece that can be tried is tried: the
step before and after the change take turns in one process. Results are written after each workload; one that fails or
has no time left is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from handheld.analyse.advise import advice
from handheld.analyse.busy import others_in
from handheld.backends.base import describe
from handheld.cli.repeating import Request
from handheld.cli.trying import made, try_advice
from handheld.measure import ceilings
from handheld.profile.run import profile
from handheld.resolve import open_model

MODELS = ("lenet5", "mobilenet_v2", "squeezenet", "resnet18", "gpt")
TRY_S = 45.0  # Seconds that a workload needs at least.


def main() -> None:
    options = _options()
    if options.show:
        print(table(json.loads(options.show.read_text())))
        return
    end = time.monotonic() + 60 * options.minutes
    caps = describe(options.on)
    if ceilings.stored(caps) is None:
        print(f"measuring the ceilings of {caps.name}", flush=True)
        ceilings.measure(options.on)
    result: dict[str, Any] = {
        "device": caps.name,
        "driver": caps.driver,
        "size": options.size,
        "load": os.getloadavg(),
        "workloads": {},
    }
    for name in options.models:
        begun = time.monotonic()
        if end - begun < TRY_S:
            result["workloads"][name] = {"problem": f"no time: {end - begun:.0f} s are left"}
            continue
        print(f"{name} ({end - begun:.0f} s left)", flush=True)
        try:
            result["workloads"][name] = one(name, options)
        except Exception as error:  # Earlier results are kept, and the next workload runs.
            traceback.print_exc()
            result["workloads"][name] = {"problem": f"{type(error).__name__}: {error}"}
        result["workloads"][name]["seconds"] = time.monotonic() - begun
        options.out.write_text(json.dumps(result, indent=1))
    options.out.write_text(json.dumps(result, indent=1))
    print(table(result))


def one(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Profile a workload, and try its first advice."""
    spec = open_model(name, options.size)
    batch = options.batch or spec.default_batch
    request = Request(name, options.size, options.on, batch=batch)
    plan, inputs = made(request)
    settings = {"what": spec.name, "model": name, "size": options.size, "batch": batch, "repeat": request.to_json()}
    names = list(inputs)
    with tempfile.TemporaryDirectory() as folder:
        batches = inputs[names[0]] if len(names) == 1 else inputs
        path = Path(folder) / "one.run"
        with profile(plan, batches, path, graph=names, steps=options.steps, idle_s=0.2, settings=settings) as run:
            given = advice(run)
            row: dict[str, Any] = {
                "batch": batch,
                "step_ms": run.step_ms()[0],
                "bound": run.bound().to_json(),
                "advice": [item.to_json() for item in given],
                "others": (load := run.others()) and load.to_json(),
            }
            chosen = next((item for item in given if item.to), None)
            if chosen is None:
                row["problem"] = "no advice that can be tried"
                return row
            if chosen.to and chosen.to.tune_s:
                chosen = replace(chosen, to=replace(chosen.to, tune_s=min(chosen.to.tune_s, options.tune_seconds)))
            trial = try_advice(run, chosen, options.seconds, lambda text: print(f"  {text}", flush=True))
            row["trial"] = trial.to_json()
            row["change"] = chosen.to_json()["to"]
    return row


def table(result: dict[str, Any]) -> str:
    """The results as a table in Markdown."""
    lines = [
        f"{result['device']}, {result['size'] or 'default'} size",
        "",
        "| workload | limit | first advice | promised | measured | within |",
        "|---|---|---|---:|---:|---|",
    ]
    for name, row in result["workloads"].items():
        trial = row.get("trial")
        limit = (row.get("bound") or {}).get("limit") or ""
        if trial is None:
            lines.append(f"| {name} | {limit} | {row.get('problem', '')} | | | |")
            continue
        changed = {key: value for key, value in row["change"].items() if value}
        what = ", ".join(f"{key} {_short(value)}" for key, value in changed.items())
        within = trial["promised_low"] <= trial["measured"] <= trial["promised_high"]
        lines.append(
            f"| {name}, batch {row['batch']} | {limit} | {trial['rule']}: {what} "
            f"| {trial['promised']:.2f}x ({trial['promised_low']:.2f} to {trial['promised_high']:.2f}) "
            f"| {trial['measured']:.2f}x ({trial['measured_low']:.2f} to {trial['measured_high']:.2f}) "
            f"| {'yes' if within else 'no'} |"
        )
    busy = [load.share for row in result["workloads"].values() if (load := others_in(row.get("others")))]
    if busy and max(busy) > 0.1:
        lines += ["", f"Other processes held {min(busy):.0%} to {max(busy):.0%} of the processors meanwhile."]
    return "\n".join(lines)


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"{value[0]} to {value[-1]}"
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--on", default="opencl")
    parser.add_argument("--size", choices=("small", "paper"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tune-seconds", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("advice.json"))
    parser.add_argument("--show", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
