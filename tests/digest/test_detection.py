"""What no corruption gets past, and no clean replica trips."""

from __future__ import annotations

import pytest
import torch

from tests.digest.campaign import clean_comparisons, corruptions
from tests.digest.corruptions import DTYPES, PATTERNS

STRONG = ("rows and columns", "64 bits of both")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pattern_is_seen(dtype: torch.dtype) -> None:
    tally = corruptions(dtype, times=3, seed=1)
    assert tally.tried == dict.fromkeys(PATTERNS, 3)
    assert [+tally.missed[check] for check in STRONG] == [{}, {}]
    assert clean_comparisons(dtype, times=30, seed=2) == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_pattern_is_seen_many_times(dtype: torch.dtype) -> None:
    tally = corruptions(dtype, times=150, seed=3)
    assert sum(tally.tried.values()) == 2250
    assert [+tally.missed[check] for check in STRONG] == [{}, {}]
    assert clean_comparisons(dtype, times=2250, seed=4) == 0
