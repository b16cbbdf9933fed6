"""Passes: functions from a graph to an equivalent graph. One file per pass.

`pipeline.py` runs them in order after capture. `scale.py` and `half.py` run when a plan is made, for its precision.
`edit.py` and `spaces.py` are tools that passes share. A pass knows nothing of devices.
"""
