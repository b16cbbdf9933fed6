"""Predicts what a training will cost: seconds, bytes and joules, with the error of such predictions.

store     the samples of a device: in the user's cache folder, and those that come with Handheld
model     what is known about a device, and how: measured there, from its ceilings, or from its description
step      a training step of a plan
rest      the rest of a training, from a run or a checkpoint
"""
