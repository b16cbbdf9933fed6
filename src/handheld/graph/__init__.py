"""A training step as data: typed tensors and a small, closed set of ops.

This folder imports no other folder of the package.
"""
