"""Pure functions that turn a run file into tables and findings.

run        Run, the result of `handheld.open_run`; its methods are the tables
timeline   recorded steps on one clock, and where the time of a step goes
commands   transfers (latency, bandwidth), launches, time of the host
memory     planned and allocated memory, and memory of the process
stats      distributions, end of warm-up, slow steps
rails      power and energy over a window, per rail
energy     energy of ops by two methods
estimate   energy estimated from watts that the user states
ops        time of ops: each, and by module, phase and kind
roofline   what limits an op at the device's ceilings
bound      what limits a step
layers     time, bytes and joules per layer
tuning     ops without a tuning record, and what tuning would gain
use        how busy the device and the cores were
overhead   cost of the measurement itself
summary    the run in a few numbers
compare    two runs beside each other; align matches their ops, judge knows noise, window_times has the values,
           quantities has memory and energy, conditions what else differs
finding    a finding: a named cause, with the steps and ops it affects
findings   all findings, and the rules about steps
advise     what to change, best first; the rules are in rules/
machine    the rules about the machine: load, clocks, heat
"""
