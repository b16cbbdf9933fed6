"""Where to train: which device and which batch, by time, energy or memory.

table     the predicted cost of a model on each device at each batch
choice    the best of a table, from which batch it is the best, and why
"""
