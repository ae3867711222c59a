"""Of ranks that all say only that a connection broke: the ends of those that broke first."""

from harness.diagnosis.cries import Blame, blame
from harness.diagnosis.endings import Ending

LISTENS = {f"[10.0.0.1]:{5000 + rank}": rank for rank in range(8)}


def cry(rank: int, peer: int, text: str = "Connection closed by peer {}. This is") -> Ending:
    return Ending(
        rank=rank,
        kind="cried",
        at_ns=9,
        what="RuntimeError",
        message="[pair.cc:553] " + text.format(f"[10.0.0.1]:{5000 + peer}"),
    )


def told(*cries: Ending, first: int = 99, known: bool = True, world_size: int = 8) -> Blame:
    """`first`: how many of the cries came at once, the others later."""
    return blame(cries, cries[:first], LISTENS if known else {}, world_size)


def test_the_rank_whose_address_all_others_name() -> None:
    seen = told(cry(0, 1), cry(1, 5), cry(2, 1), first=1, known=False, world_size=3)
    assert seen.ranks == (1,)
    assert "every other rank lost the one with [10.0.0.1]:5001" in seen.shows


def test_what_the_first_connections_have_in_common() -> None:
    seen = told(cry(2, 3), cry(4, 3), cry(3, 4), cry(1, 2), first=3)
    assert seen.ranks == (3,)
    assert "with ranks 2,4, had rank 3 at one end" in seen.shows


def test_of_one_connection_both_ends_are_listed() -> None:
    reset = "Read error {}: Connection reset by peer"
    assert told(cry(1, 0, reset), world_size=2, known=False).ranks == (0, 1)
    assert told(cry(4, 6, reset), cry(5, 4), first=1).ranks == (4, 6)
    assert told(cry(4, 6), cry(6, 4)).ranks == (4, 6)


def test_connections_without_a_common_end_name_all_ends() -> None:
    assert told(cry(0, 1), cry(2, 3)).ranks == (0, 1, 2, 3)


def test_where_addresses_are_not_known_the_first_to_cry_are_listed() -> None:
    assert told(cry(4, 6), cry(5, 4), first=1, known=False).ranks == (4,)
    seen = told(cry(4, 6), cry(5, 4), known=False)
    assert (seen.ranks, "lost one first" in seen.shows) == ((4, 5), True)
    assert told(Ending(rank=3, kind="cried", at_ns=1, what="RuntimeError")).ranks == (3,)
