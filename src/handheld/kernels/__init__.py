"""Kernel families: each turns nodes of some ops into launches for a device description.

    base.py, args.py      the records of a launch, and small helpers
    contract*             matrix products and convolutions; direct*, few*, depthwise* are special cases, naive* slow
    attention*            attention and its gradient
    pool*, recurrent*     pooling; LSTM and GRU
    index*, order*        writing by index; sorting and scans
    ctc*                  connectionist temporal classification
    loops.py, rows*.py    generated kernels of map and reduce (expr.py, space.py, stages.py)
    half.cl, wide.cl, math.cl   halves in memory, vectors of 16 floats, functions: included by the others

A `.cl` file opens with its algorithm and indexing. This folder knows graphs and device descriptions, but no
backends: it enqueues nothing. plan/lowering.py maps ops to families.
"""
