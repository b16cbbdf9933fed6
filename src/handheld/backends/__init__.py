"""Backends: the code that runs plans on a kind of device.

`base.py` is the contract (`Session`), `table.py` lists the backends. `opencl/` runs kernels, `reference/` runs
PyTorch op by op, and `null.py` computes nothing.
"""
