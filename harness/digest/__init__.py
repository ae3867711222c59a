"""Digests of tensors by the sums of their rows and columns: see docs/digests.md."""
