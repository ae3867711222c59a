"""Checks of a rank's own numbers, for what digests of replicas cannot show: docs/masked.md."""
