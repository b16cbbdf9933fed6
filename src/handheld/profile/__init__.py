"""Ties what is measured to the operations of a step.

work       what an op has to do at least: floating point operations, bytes
memory     what is alive while an op runs, by category
facts      what a run was measured on: device, versions, settings, the user's code
windows    which steps are recorded
sampling   sensors beside the steps
profiler   sees a trainer's steps, records some of them, writes the run file
energy     windows of equal work, for the energy of each op
estimate   watts that the user states, where nothing measures them
session    plan.profile(): a loop of steps under a profiler, with sensors
watch      the same for plain PyTorch, which Handheld does not run
"""
