"""Records PyTorch models as graphs. Only this package, backends/reference/ and suite/ import torch."""
