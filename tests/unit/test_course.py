"""Of ranks that wait for each other over messages and collectives: the one that left its way."""

from dataclasses import replace

import pytest

from harness.collectives import Collective, PointToPoint
from harness.diagnosis.waits.compare import off_course
from harness.diagnosis.waits.course import course
from harness.diagnosis.waits.record import RankWait, Waits
from tests.replay.world import collective

REDUCE = "/home/u/train.py:9:step"
STEPS = 5


class Program:
    """A rank that exchanges two messages with its peer and then reduces, in each step."""

    def __init__(self, peer: int) -> None:
        self.entries: list[Collective] = []
        self.messages: list[PointToPoint] = []
        self._peer, self._now = peer, 0

    def message(self, direction: str, state: str = "done") -> None:
        self._now += 1
        number = 1 + sum(op.direction == direction for op in self.messages)
        self.messages.append(
            PointToPoint(
                direction=direction, peer=self._peer, pg="0", pg_desc="default_pg", tag=0,
                number=number, sizes=(2, 32), dtype="float32", state=state, begun_ns=self._now,
                ended_ns=0,
            )
        )  # fmt: skip

    def reduce(self, *, done: bool = True, site: str = REDUCE) -> None:
        self._now += 1
        made = collective(len(self.entries), sizes=((2,),), retired=done)
        self.entries.append(replace(made, created_ns=self._now, site=site))

    def steps(self, count: int = STEPS) -> "Program":
        for _ in range(count):
            self.message("send")
            self.message("recv")
            self.reduce()
        return self

    def wait(self, rank: int) -> RankWait:
        return RankWait(rank=rank, course=course(self.entries, self.messages))


def told(*programs: Program) -> dict[int, tuple[str, str]]:
    ranks = {rank: program.wait(rank) for rank, program in enumerate(programs)}
    return off_course(Waits(world_size=len(ranks), ranks=ranks), ranks)


def in_the_reduction(program: Program) -> Program:
    program.message("send")
    program.message("recv")
    program.reduce(done=False)
    return program


def test_a_rank_that_left_out_a_collective_between_messages() -> None:
    waits = in_the_reduction(Program(peer=1).steps())
    ahead = Program(peer=0).steps()
    ahead.message("send")
    ahead.message("recv")
    ahead.message("send", state="waiting")
    found = told(waits, ahead)
    reduction = "all_reduce 2 float on default_pg at train.py:9"
    assert found == {1: (reduction, "send 2x32 float32 to rank 0")}


def test_a_rank_that_makes_one_collective_too_many() -> None:
    more = Program(peer=1).steps()
    more.reduce(done=False)
    usual = Program(peer=0).steps()
    usual.message("send", state="waiting")
    assert list(told(more, usual)) == [0]


def test_what_comes_for_the_first_time_blames_nobody() -> None:
    """One may have begun what the other has left out."""
    new = Program(peer=1).steps()
    new.reduce(done=False, site="/home/u/train.py:30:evaluate")
    usual = Program(peer=0).steps()
    usual.message("send", state="waiting")
    assert told(new, usual) == {}


def chain(*, third: bool, number: int = 4) -> list[Program]:
    """Rank 0 sends to rank 1 in each step; now it does so to rank 2, which reduces already."""
    sender, receiver, rest = Program(peer=1), Program(peer=0), Program(peer=0)
    for _ in range(number):
        sender.message("send")
        receiver.message("recv")
        for program in (sender, receiver, rest):
            program.reduce()
    sender._peer = 2
    sender.message("send", state="waiting")
    receiver.message("recv", state="waiting")
    rest.reduce(done=False)
    return [sender, receiver, rest][: 3 if third else 2]


def test_a_message_to_another_rank_than_always_while_that_one_waits_for_it() -> None:
    found = told(*chain(third=True))
    assert found == {0: ("send 2x32 float32 to rank 1", "send 2x32 float32 to rank 2")}
    assert told(*chain(third=False)) == {}
    assert told(*chain(third=True, number=1)) == {}


def test_what_comes_every_few_steps_blames_nobody() -> None:
    """The one that is there now has come to it before; it is the other that left it out."""

    def logs(program: Program, *, done: bool = True) -> Program:
        program.reduce(done=done, site="/home/u/train.py:20:log")
        return program

    right = logs(logs(Program(peer=1).steps(2)).steps(4), done=False)
    ahead = logs(Program(peer=0).steps(2)).steps(4)
    ahead.message("send", state="waiting")
    assert told(right, ahead) == {}


@pytest.mark.parametrize("count", [0, 1])
def test_few_steps_tell_nothing(count: int) -> None:
    ahead = Program(peer=0).steps(count)
    ahead.message("send")
    ahead.message("recv")
    ahead.message("send", state="waiting")
    assert told(in_the_reduction(Program(peer=1).steps(count)), ahead) == {}


def test_it_begins_where_both_records_do() -> None:
    program = in_the_reduction(Program(peer=1).steps())
    program.messages = program.messages[-5:]
    cut = program.wait(0).course
    assert len(cut) == len(program.messages) + 3
    assert program.wait(0).course[-1][1].op == "all_reduce"
    program.messages = []
    assert program.wait(0).course == ()


def test_of_messages_begun_together_the_later_one_may_be_done() -> None:
    """In a ring: rank 1 has left out the last exchange, and reduces already."""

    def together(program: Program, first: str, second: str) -> Program:
        program.message("send", state=first)
        program.message("recv", state=second)
        return program

    def ring(peer: int) -> Program:
        program = Program(peer)
        for _ in range(4):
            for _ in range(3):
                together(program, "done", "done")
            program.reduce()
        return together(together(program, "done", "done"), "done", "done")

    to_it, it = together(ring(1), "waiting", "done"), ring(0)
    it.reduce(done=False)
    from_it = together(ring(1), "done", "waiting")
    assert to_it.wait(0).course[-1][1].op == "send"
    assert list(told(to_it, it, from_it)) == [1]


def test_a_rank_that_waits_in_nothing_has_no_course() -> None:
    assert Program(peer=1).steps().wait(0).course == ()
