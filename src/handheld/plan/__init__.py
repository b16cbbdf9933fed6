"""Plans: a step and the description of a device become launches, memory places and transfers.

    plan.py        the records `Plan` and `GraphPlan`
    make.py        makes a plan with the files below
    precision.py   prepares the graphs for float32 or half
    lowering.py    turns a node into launches (kernel families are in kernels/)
    tuning.py      tuning records: the fastest variant per signature (signature.py)
    memory.py      gives every tensor a place (lifetimes.py)
    verify.py      checks the finished plan again
    texts.py       the program texts to compile (merge.py, widen.py)
    file.py        plan files for runners (file_format.py, file_write.py, file_read.py)
    explain.py     describes a plan as text; codec.py writes and reads it as JSON

Nothing here opens a device: `Plan.start` calls run/planning.py.
"""
