"""The final table of bench/accounts.py: each figure, and whether it is within its limit."""

from __future__ import annotations

import energy
from account_times import Row

UNEXPLAINED, BUSY, ENERGY = 0.02, 0.03, 0.10  # largest allowed shares


def limits(results: Row) -> list[tuple[str, str, bool | None]]:
    """Rows of (description, figure, whether it is within its limit). None means that the figure has no limit."""
    rows: list[tuple[str, str, bool | None]] = []
    for name, row in results["workloads"].items():
        if "time" in row:
            rows += _times(name, row["time"])
        if "energy" in row:
            rows += _energies(name, row["energy"])
    if results.get("planted"):
        for method in energy.METHODS:
            pair = results["planted"][method]
            a, b = (pair[k]["joules"] / pair[k]["run_s"] for k in ("arithmetic", "memory"))
            same = pair["arithmetic"]["run_s"] / pair["memory"]["run_s"]
            rows.append(
                (
                    f"two kernels, {method}: W of arithmetic, memory (time {same:.3f})",
                    f"{a:.1f}, {b:.1f}",
                    pair["told apart"],
                )
            )
    for name in ("torch", "watch") if results.get("torch_ops") else ():
        sums = results["torch_ops"][name]
        rows.append(
            (
                f"{name} on {results['torch_ops']['where']}: steps with times, ops",
                f"{sums['recorded']}, {sums['ops']}",
                bool(sums["recorded"] and sums["ops"]),
            )
        )
    return rows


def _times(name: str, one: Row) -> list[tuple[str, str, bool | None]]:
    kernels, held, busy, memory = (one[k] for k in ("kernels_ms", "held_ms", "busy_ms", "memory"))
    same = memory["plan_bytes"] == memory["allocated_bytes"]
    return [
        (f"{name}: unexplained of a step", f"{one['unexplained']:.2%}", abs(one["unexplained"]) <= UNEXPLAINED),
        *(
            [
                (
                    f"{name}: kernels {held:.3f} ms, unprofiled {busy:.3f}",
                    f"{held / busy - 1:+.1%}",
                    abs(held / busy - 1) <= BUSY,
                ),
                (f"{name}: kernels as steps run, {kernels:.3f} ms", f"{kernels / busy - 1:+.1%}", None),
            ]
            if busy and held
            else [(f"{name}: busy time, unprofiled", "not measured", None)]
        ),
        (f"{name}: step {one['plain_ms']:.3f} ms, profiled over it", f"{one['ratio']:.3f}", one["ratio"] <= 1.05),
        (f"{name}: allocated of {memory['plan_bytes']:,} planned", f"{memory['allocated_bytes']:,}", same),
    ]


def _energies(name: str, one: Row) -> list[tuple[str, str, bool | None]]:
    rows: list[tuple[str, str, bool | None]] = []
    for held in (name for name in energy.HELD_OUT if name in one):
        counter = one[held]["joules"]
        plainly = one[held].get("mean power")
        if plainly is not None:
            rows.append((f"{name}: {held}, mean power x time", f"{plainly / counter - 1:+.1%}", None))
        off = {m: one[held][m] / counter - 1 for m in (*energy.METHODS, *energy.TIMED)}
        for m, error in off.items():
            known = plainly is None or m in energy.TIMED  # These figures have no limit.
            rows.append((f"{name}: {held}, {m}", f"{error:+.1%}", None if known else abs(error) <= ENERGY))
        if plainly is not None:
            closer = sum(abs(off[m]) < abs(plainly / counter - 1) for m in energy.METHODS)
            rows.append(
                (
                    f"{name}: {held}, closer than mean power",
                    f"{closer} of {len(energy.METHODS)}",
                    closer == len(energy.METHODS),
                )
            )
    if one["correlation"] is not None:
        rows.append((f"{name}: correlation of {len(one['signatures'])} signatures", f"{one['correlation']:.3f}", None))
    if "problem" in one:
        rows.append((f"{name}: other batch: {one['problem']}", "not measured", False))
    share = one["memory_share"]
    rows.append((f"{name}: memory's share of a step's energy", "no rail" if share is None else f"{share:.1%}", None))
    return rows


def say(results: Row) -> int:
    """Prints the table. The exit code is 1 if a part has no result; a missed limit does not change it."""
    rows = limits(results)
    print()
    for what, figure, good in rows:
        word = {True: "met", False: "MISSED", None: ""}[good]
        print(f"{what:59} {figure:>14} {word}")
    for name, problem in results["problems"].items():
        print(f"{name}: {problem}")
    missed = sum(good is False for _, _, good in rows)
    print(
        f"\n{sum(good is True for _, _, good in rows)} limits met, {missed} missed, "
        f"{len(results['problems'])} parts without a result"
    )
    return 0 if not results["problems"] else 1
