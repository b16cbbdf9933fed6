"""Runs workloads on devices at batch sizes, each run in its own process, into one results folder.

    matrix = bench.Matrix(("mlp", "lenet5"), ("opencl", "reference:cpu"), (1, 16))
    for row in bench.run(matrix, "results"):        # continues where it stopped
        print(row["workload"], row["device"], row["status"], row.get("samples_s"))

    results = bench.open_results("results")         # needs no device
    for row in results.rows:
        path = results.run_path(row)                # for handheld.open_run; None: no run file

| module | content |
|---|---|
| matrix | what is to be run, and in which order |
| folder | the results folder: its lock, its rows, its run files |
| run | the loop: prepares, cools, measures, writes one row per run |
| task | one task in a process that may fail, hang or need too much memory |
| worker | that process: captures a step, or measures one |
| eager | plain PyTorch as a device, for comparison: pytorch:cpu, pytorch:cuda |
| row | the main figures of a run file |
| shapes | the fields of rows, of the report card and of a comparison, with their types |
| heat | waits until the machine is as cool as at the start |
| compare | compares two folders, or merges several |
| card | the report card: what trains here, at which batch, how fast, on which processor |
"""

from handheld.bench.card import card
from handheld.bench.compare import compare, merge
from handheld.bench.folder import Results, open_results
from handheld.bench.matrix import Case, Matrix, expand
from handheld.bench.run import Progress, Settings, run
from handheld.bench.shapes import Row

__all__ = [
    "Case",
    "Matrix",
    "Progress",
    "Results",
    "Row",
    "Settings",
    "card",
    "compare",
    "expand",
    "merge",
    "open_results",
    "run",
]
