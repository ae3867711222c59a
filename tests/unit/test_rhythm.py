"""One rank of several that once called an operation more, or fewer, than the others."""

from harness.diagnosis.waits.past import roles
from harness.diagnosis.waits.record import Group
from harness.diagnosis.waits.rhythm import Order, slip

Steps = list[list[str]]


def steps(count: int = 12) -> Steps:
    """Two sums over tp and one over dp in each."""
    return [["tp", "tp", "dp"] for _ in range(count)]


def order(program: Steps) -> Order:
    seen: dict[str, int] = {}
    found = []
    for role in (role for step in program for role in step):
        seen[role] = seen.get(role, 0) + 1
        found.append((role, seen[role]))
    return tuple(found)


def said(*programs: Steps) -> tuple[int, int, int] | None:
    found = slip({rank: order(program) for rank, program in enumerate(programs)})
    return None if found is None else (found.rank, found.here, found.usual)


def with_step(at: int, step: list[str], count: int = 12) -> Steps:
    program = steps(count)
    program[at] = step
    return program


def test_a_rank_that_left_one_out() -> None:
    assert said(steps(), steps(), with_step(10, ["tp", "dp"]), steps()) == (2, 1, 2)


def test_a_rank_that_made_one_too_many() -> None:
    assert said(with_step(10, ["tp", "tp", "dp", "dp"]), steps(), steps()) == (0, 2, 1)


def test_what_several_do_is_nobodys_slip() -> None:
    both = with_step(10, ["tp", "tp", "tp", "dp"])
    assert said(both, both, steps(), steps()) is None
    assert said(steps(), with_step(10, ["tp", "dp"]), with_step(9, ["tp", "dp"]), steps()) is None


def test_what_all_do_now_and_then_is_of_the_rhythm() -> None:
    program = [["tp", "tp", "dp", *(["world"] if at % 5 == 4 else [])] for at in range(12)]
    slipped = [list(step) for step in program]
    slipped[9].remove("tp")
    assert said(program, program, program, program) is None
    assert said(program, program, program, slipped) == (3, 1, 2)


def test_few_ranks_or_few_rounds_tell_nothing() -> None:
    assert said(with_step(10, ["tp", "dp"]), steps()) is None
    assert said(with_step(3, ["tp", "dp"]), steps(), steps()) is None


def test_stages_of_a_pipeline_that_do_other_things_are_not_compared() -> None:
    last = [["tp", "dp"] for _ in range(12)]
    assert said(steps(), steps(), last) is None


def test_groups_that_nobody_has_described_are_known_by_size_and_age() -> None:
    mine = [
        Group(name=name, desc=desc, ranks=ranks)
        for name, desc, ranks in (
            ("0", "default_pg", (0, 1, 2, 3)),
            ("7", "undefined", (2, 3)),
            ("9", "", (1, 3)),
            ("11", "mesh_tp", (3,)),
        )
    ]
    of_two = ("its group 1 of 2 ranks", "its group 2 of 2 ranks")
    assert roles(mine) == ("default_pg", *of_two, "a group of its own")
    # A record that begins amid a step shows them in another order.
    assert roles([mine[2], mine[1]]) == tuple(reversed(of_two))
