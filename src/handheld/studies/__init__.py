"""The two studies, repeated on the device at hand: what to run, and what its runs say."""
