"""How often a process that holds the state of a run looks for garbage in circles."""

import gc

_COLLECT_AT = (100_000, 50, 100)


def collect_seldom() -> None:
    """Look for garbage in circles only now and then: the state of a large run is millions of
    objects that live on, and going through them takes as long as all else together."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)
