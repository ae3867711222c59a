"""Of ranks that all say only that a connection broke: the one that every other rank has lost."""

from harness.diagnosis.cries import common_end
from harness.diagnosis.endings import Ending


def cried(**peers: str) -> dict[int, Ending]:
    return {
        int(name[1:]): Ending(
            rank=int(name[1:]),
            kind="cried",
            at_ns=9,
            what="RuntimeError",
            message=f"[pair.cc:553] Connection closed by peer [127.0.0.1]:{port}. This is",
        )
        for name, port in peers.items()
    }


def test_the_rank_whose_address_all_others_name() -> None:
    seen = cried(r0="5553", r1="53376", r2="5553")
    assert common_end(seen, 3) == (1, "[127.0.0.1]:5553")


def test_two_ranks_and_different_addresses_tell_nothing() -> None:
    assert common_end(cried(r0="5553", r1="53376"), 2) is None
    assert common_end(cried(r0="5553", r1="53376", r2="53378"), 3) is None
    assert common_end(cried(r0="5553", r1="53376", r2="5553"), 4) is None
    assert common_end({}, 3) is None
