"""A training step as data: typed tensors and a small, closed set of ops.

    graph.py, program.py, dtypes.py   the records: graphs, scalar programs, element types
    ops.py                            every op with its exact meaning
    check*.py                         what a legal graph is
    codec.py, decode.py               graphs as JSON data, and back
    text.py                           graphs as text for people
    interpret.py, evaluate.py         run scalar programs on arrays; with NumPy

This folder imports no other folder of the package.
"""
