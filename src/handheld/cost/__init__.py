"""What an op costs on a device: time (`time`) and energy (`energy`), predicted from samples and ceilings.

Pure numpy: nothing here knows graphs, plans or devices. `Work` describes an op; plan/work.py makes it from a plan,
analyse/samples.py from a run.
"""
