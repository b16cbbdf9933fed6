"""Handheld: train PyTorch models on phone-class hardware, and see where every step goes."""
