"""One-file HTML pages: pure functions from data to text; no package, no network."""
