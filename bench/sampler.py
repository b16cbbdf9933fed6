"""Shows what this machine's sensors read, how fast their values really change, and what sampling costs.

    python bench/sampler.py [--seconds 5] [--load "COMMAND"] [--period NAME=SECONDS] [--json FILE]

With --load a shell command runs meanwhile, and sampling ends with it. The line of a source shows readings
per second, missed deadlines, the mean and the longest reading time, and its share of a core. The line of
a channel shows its first, last and mean value and the median time between two values. Where a source has
both power and an energy counter, the integral of the power is divided by the counter's increase: the
result is 1 if both are right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from handheld.sensors import Sampler, Samples, find


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--load", help="a shell command to run while sampling")
    parser.add_argument("--period", action="append", default=[], metavar="NAME=SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    probed = find()
    for source in probed:
        print(
            f"{source.name:16} "
            + (f"no: {source.reason}" if source.reason else f"{source.cost_s * 1e6:.0f} µs per reading")
        )
    periods = {name: float(s) for name, _, s in (text.partition("=") for text in options.period)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.samples"
        with Sampler([one.sensor for one in probed if one.sensor], path, periods) as sampler:
            if options.load:
                subprocess.run(options.load, shell=True, check=False, stdout=subprocess.DEVNULL)
            else:
                time.sleep(options.seconds)
        result = report(sampler, path)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def report(sampler: Sampler, path: Path) -> dict[str, Any]:
    summary = sampler.summary()
    print(
        f"\n{summary.elapsed_s:.1f} s, {summary.cpu_share:.1%} of a core in all, {summary.gaps} gaps"
        + (f", {summary.problem}" if summary.problem else "")
    )
    result: dict[str, Any] = {
        "elapsed_s": summary.elapsed_s,
        "cpu_share": summary.cpu_share,
        "gaps": summary.gaps,
        "problem": summary.problem,
        "sources": [],
    }
    with Samples(path) as samples:
        for source in summary.sources:
            print(
                f"\n{source.name}: asked every {source.period_s * 1e3:g} ms, "
                f"{source.readings / summary.elapsed_s:.1f} per second, {source.missed} missed, "
                f"{source.mean_s * 1e6:.0f} µs (at most {source.max_s * 1e6:.0f}) per reading, "
                f"{source.cpu_share:.2%} of a core"
            )
            lines = channels(samples, source.name)
            result["sources"].append({**vars(source), "channels": lines})
        for gap in samples.gaps():
            print(f"\ngap: {gap['source']} {gap['channel'] or ''}: {gap['reason']}")
    return result


def channels(samples: Samples, source: str) -> list[dict[str, Any]]:
    rows = [row for row in samples.channels() if row["source"] == source]
    energies = {row["covers"]: row["name"] for row in rows if row["quantity"] == "energy" and row["counter"]}
    for row in rows:
        t_s, values = samples.series(source, row["name"])
        if not len(values):
            continue
        row.update(first=values[0], last=values[-1], mean=float(np.mean(values)))
        update = row["update_s"]
        text = f"  {row['name']:24} {values[0]:.6g} to {values[-1]:.6g} {row['unit']}, mean {row['mean']:.6g}, " + (
            "did not change" if update is None else f"changes every {update * 1e3:.1f} ms"
        )
        counter = energies.get(row["covers"]) if row["quantity"] == "power" else None
        if counter and len(values) > 2:
            _, joules = samples.series(source, counter)
            drawn = float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(t_s)))
            rise = float(joules[-1] - joules[0])
            row["over_counter"] = drawn / rise if rise else None
            text += f", integral {drawn:.4g} J against the counter's {rise:.4g} J"
            text += f" = {drawn / rise:.3f}" if rise else ""
        print(text)
    return rows


if __name__ == "__main__":
    main()
