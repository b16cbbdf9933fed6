"""The op cases as a product: what `handheld doctor --conformance` runs on a driver, and what the tests run.

`cases.py` lists them and needs PyTorch, `check.py` compares one with PyTorch in float64, `variants.py` runs one with
every variant of its kernels. `run.py` runs all of them on a device and resumes; `report.py` writes what it found.
"""
