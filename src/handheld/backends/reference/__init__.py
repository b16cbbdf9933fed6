"""The reference backend: runs a graph op by op in PyTorch. `session.py` is the entry.

`ops.py` computes each op, with the help of `programs.py`, `rnn.py` and `attention.py`. `recording.py` takes times.
"""
