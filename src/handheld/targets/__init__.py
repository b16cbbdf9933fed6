"""Where a runner runs: on this machine, behind ssh, on a phone behind adb.

    name = names.parse("ssh:me@box/1")       what the user wrote, in parts
    target = open_target(name)               a Target: base.py; local.py, ssh.py, adb.py
    with target.start("serve") as running:   the runner; its protocol is in backends/runner

A target puts the runner into one folder, and `handheld target clean` removes that folder.
"""
