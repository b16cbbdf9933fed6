"""`python -m handheld`, where the script is not on the path."""

from handheld.cli import entry

entry()
