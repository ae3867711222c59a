"""Harness keeps distributed PyTorch training alive and tells the truth when it breaks."""
