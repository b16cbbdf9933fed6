"""Measures steps and assigns the measurements to their operations.

work       the least work of an op: floating-point operations and bytes
memory     the memory that is alive while an op runs, per category
facts      the conditions of a run: device, versions, settings, the user's code
windows    decides which steps are recorded
sampling   samples sensors during the steps
profiler   observes a trainer's steps, records some of them, writes the run file
energy     windows of repeated equal work, for the energy of each op
inputs     inputs for the graphs of a step when only its cost is measured
run        plan.profile(): a loop of steps under a profiler, with sensors
watch      the same for plain PyTorch, which Handheld does not run
"""
