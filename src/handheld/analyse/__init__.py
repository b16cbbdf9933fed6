"""Pure functions: a run file -> tables, findings.

    run        Run: what `handheld.open_run` gives; its methods are the tables
    timeline   recorded steps on one clock, and where the time of a step goes
    stats      distributions, where warm-up ends, which steps are slow
    rails      power and energy over a window, by rail
    findings   what is worth knowing: named causes, the steps and ops they touch
"""
