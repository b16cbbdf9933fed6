"""The OpenCL backend. `session.py` is the entry and lists the other modules."""
