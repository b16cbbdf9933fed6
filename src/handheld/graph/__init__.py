"""The training step as data: typed tensors and a small closed set of ops. Imports nothing else."""
