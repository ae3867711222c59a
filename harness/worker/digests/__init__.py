"""Which tensors of a rank should equal those of others, and their digests: see docs/replicas.md."""
