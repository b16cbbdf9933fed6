"""Pure functions: a run file -> tables, findings.

run        Run: what `handheld.open_run` gives; its methods are the tables
timeline   recorded steps on one clock, and where the time of a step goes
commands   transfers (latency, bandwidth), launches, the host's time
memory     planned, allocated, and what the process reports
stats      distributions, where warm-up ends, which steps are slow
rails      power and energy over a window, by rail
energy     energy of ops by two methods
estimate   energy from watts that the user states, marked as an estimate
ops        the time of ops: each, and by module, phase and kind
use        how busy device and cores were
overhead   what measuring has cost
summary    the run in a few numbers
finding    a finding: a named cause, the steps and ops it touches
findings   all findings; those about the step
machine    findings about the machine: load, clocks, heat
"""
