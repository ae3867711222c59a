"""Harness keeps distributed PyTorch training alive and tells the truth when it breaks."""

import contextlib


def progress(step, *, loss=None, tokens=None, total_steps=None):
    pass


def phase(name):
    return contextlib.nullcontext()


def checkpoint_saved(step, path, seconds):
    pass


def checkpoint_loaded(step, path):
    pass
