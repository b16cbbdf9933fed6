"""PyTorch → Graph. With backends/reference/ and suite/ the only importer of torch."""
