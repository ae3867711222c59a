"""Ranks in words."""

from harness.topology import ranks_name


def test_very_many_ranks_are_named_by_the_first_and_their_number() -> None:
    strided = range(0, 16384, 32)
    assert ranks_name(strided) == "ranks 0,32,64,96,128,160,192,224 and 504 more"
    assert ranks_name([*range(12), *range(20, 16384, 2)]).startswith("ranks 0-11,20,22,")
    assert ranks_name(range(16384)) == "ranks 0-16383"
    assert ranks_name(range(0, 48, 2)) == f"ranks {','.join(map(str, range(0, 48, 2)))}"
    assert ranks_name([7]) == "rank 7"
