"""Sizes of messages by which an abort is traced to a call, as Gloo's aborts have named them."""

import pytest

from harness.diagnosis.mismatch.pieces import Abort, pieces
from harness.diagnosis.waits.record import Call


def call(op: str, *shape: int, dtype: str = "Float") -> Call:
    return Call(op=op, sizes=(shape,), dtypes=(dtype,))


@pytest.mark.parametrize(
    ("made", "members", "expected"),
    [
        (call("all_reduce", 10304), 8, {2576}),
        (call("all_reduce", 10305), 8, {2580, 2520}),
        (call("all_reduce", 4129), 2, {4132, 4120}),
        (call("all_reduce", 3, dtype="Double"), 4, {8}),
        (call("all_reduce", 16 << 20), 2, {1 << 20}),
        (call("all_gather", 4104), 4, {8208}),
        (call("all_gather", 3), 4, {6}),
        (call("broadcast", 5, 7), 4, {140}),
        (call("alltoall", 64), 4, set()),
        (call("all_reduce", 0), 4, set()),
        (call("all_reduce", 64, dtype="Unheard"), 4, set()),
    ],
)
def test_messages_of_a_call(made: Call, members: int, expected: set[int]) -> None:
    assert pieces(made, members) == expected


def test_what_an_abort_tells() -> None:
    abort = Abort(rank=0, came=8208, room=5152)
    gathered, next_one = call("all_gather", 4104), call("all_gather", 2576)
    assert abort.was_sent(gathered, 4)
    assert abort.had_room_for(gathered, 4) is False
    assert abort.ran_ahead(gathered, next_one, 4)
    assert not abort.ran_ahead(gathered, gathered, 4)
    assert abort.had_room_for(call("alltoall", 64), 4) is None
    assert Abort(rank=0, came=0, room=0).had_room_for(gathered, 4) is None


def test_pieces_of_two_sizes_do_not_tell_who_called_it() -> None:
    weight, bias = call("all_reduce", 16), call("all_reduce", 1)
    assert pieces(weight, 3) == {12, 4}
    abort = Abort(rank=2, came=12, room=4)
    assert abort.was_sent(weight, 3)
    assert abort.had_room_for(weight, 3) is None
    assert abort.had_room_for(bias, 3)
