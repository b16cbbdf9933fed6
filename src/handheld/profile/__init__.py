"""Ties what is measured to the operations of a step.

    work       what an op has to do at least: floating point operations, bytes
    memory     what is alive while an op runs, by category
    facts      what a run was measured on: device, versions, settings, the user's code
    profiler   sees a trainer's steps, records some of them, writes the run file
    session    plan.profile(): a loop of steps under a profiler, sensors sampled beside it
"""
