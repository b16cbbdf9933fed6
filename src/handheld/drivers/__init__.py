"""Finds out what a driver computes wrongly, before a plan relies on it.

    described(device) ──► known(caps)? ──► check: every kernel family in a child process ──► cache
          │                                (sketches.py: the problems, numpy_ops.py: the right results)
          ▼
    DeviceCaps with `avoid`, so that plans take other kernels (plan/ways.py)

It needs no PyTorch, and runs through sessions, so it checks drivers on targets too.
"""
