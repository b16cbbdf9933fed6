"""What only a measurement can tell: which variant of a kernel is fastest, what a device can do."""
