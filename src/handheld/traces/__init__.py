"""Reads traces that other profilers wrote, and makes run files of them.

`events.py` reads the JSON of torch.profiler, `nesting.py` finds out what each event belongs to, and `pytorch.py` writes
the run file. Nothing here needs PyTorch.
"""
