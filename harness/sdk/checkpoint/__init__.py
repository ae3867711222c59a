"""Checkpoints of a training script: `harness.Checkpointer`. Nothing is imported here, so that a
script that only tells its progress does not pay for it."""
