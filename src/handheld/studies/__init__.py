"""The two published studies, repeated on this device: what they run, and what the runs show."""
