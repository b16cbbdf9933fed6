"""HTML pages in one file, made by pure functions from data. They need no package and no network."""
