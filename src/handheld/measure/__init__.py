"""Measurements: which variant of a kernel is fastest, and what a device can do at most."""
