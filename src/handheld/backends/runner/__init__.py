"""The runner as a backend: plans run in another process, on this machine or on a target.

    link       requests and answers over the streams of one runner
    connect    keeps runners open, asks them for their devices
    caps       descriptions and names of a runner's devices (probe: runs small programs on them)
    session    implements `Session` over a link
    observe    the clock, files and sensors of a runner's machine

A session sends the plan as a plan file (plan/file.py), so the device gets what the OpenCL backend would give it.
"""
