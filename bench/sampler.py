"""What the sensors of this machine read, how fast they really change, and what sampling costs.

    python bench/sampler.py [--seconds 5] [--load "COMMAND"] [--period NAME=SECONDS] [--json FILE]

With --load a shell command runs meanwhile and sets the time. A source's line: readings a second,
deadlines missed, mean and longest reading, share of a core. Then each channel: median time between
two values, first to last, mean; and where a source has a power beside an energy counter, the
power's integral over the counter's rise, which is 1 where both are right.
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
    parser.add_argument("--load", help="a shell command to sample meanwhile")
    parser.add_argument("--period", action="append", default=[], metavar="NAME=SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = find()
    for one in found:
        print(
            f"{one.name:16} " + (f"no: {one.reason}" if one.reason else f"{one.cost_s * 1e6:.0f} µs a reading in a row")
        )
    periods = {name: float(s) for name, _, s in (text.partition("=") for text in options.period)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.samples"
        with Sampler([one.sensor for one in found if one.sensor], path, periods) as sampler:
            if options.load:
                subprocess.run(options.load, shell=True, check=False, stdout=subprocess.DEVNULL)
            else:
                time.sleep(options.seconds)
        result = report(sampler, path)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def report(sampler: Sampler, path: Path) -> dict[str, Any]:
    made = sampler.summary()
    print(
        f"\n{made.elapsed_s:.1f} s, {made.cpu_share:.1%} of a core in all, {made.gaps} gaps"
        + (f", {made.problem}" if made.problem else "")
    )
    result: dict[str, Any] = {
        "elapsed_s": made.elapsed_s,
        "cpu_share": made.cpu_share,
        "gaps": made.gaps,
        "problem": made.problem,
        "sources": [],
    }
    with Samples(path) as samples:
        for one in made.sources:
            print(
                f"\n{one.name}: every {one.period_s * 1e3:g} ms asked, "
                f"{one.readings / made.elapsed_s:.1f} a second, {one.missed} missed, "
                f"{one.mean_s * 1e6:.0f} µs (at most {one.max_s * 1e6:.0f}) a reading, "
                f"{one.cpu_share:.2%} of a core"
            )
            lines = channels(samples, one.name)
            result["sources"].append({**vars(one), "channels": lines})
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
            text += f", integral {drawn:.4g} J over the counter's {rise:.4g} J"
            text += f" = {drawn / rise:.3f}" if rise else ""
        print(text)
    return rows


if __name__ == "__main__":
    main()
