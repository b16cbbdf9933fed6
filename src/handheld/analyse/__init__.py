"""Pure functions: a run file -> tables, findings.

run        Run: what `handheld.open_run` gives; its methods are the tables
timeline   recorded steps on one clock, and where the time of a step goes
commands   transfers (latency, bandwidth), launches, the host's time
memory     planned, allocated, and what the process reports
stats      distributions, where warm-up ends, which steps are slow
rails      power and energy over a window, by rail
energy     energy of ops by two methods
estimate   energy from watts that the user states, marked as an estimate
findings   what is worth knowing: named causes, the steps and ops they touch
"""
