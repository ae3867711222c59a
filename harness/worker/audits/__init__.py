"""Checks of a rank's own numbers, for what the digests of replicas cannot show: see docs/masked.md."""
