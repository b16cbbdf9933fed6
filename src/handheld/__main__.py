"""Runs the command line as `python -m handheld`, for when the script `handheld` is not on the path."""

from handheld.cli import entry

entry()
