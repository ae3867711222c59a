"""What a rank's books tell when they are asked closely, and what they leave out."""

import base64
import json
import sys
from array import array
from typing import Any

import pytest
import torch

from harness import orders as o
from harness.agent import closeups
from harness.digest import referee
from harness.digest.layout import WIDTH
from harness.worker.digests.books import COLUMNS, PARAMETERS, Book, Entry, Teller
from harness.worker.digests.deeds import Deeds
from harness.worker.digests.layouts import Group
from harness.worker.digests.optimizers import Watched
from harness.worker.digests.pace import Pace
from harness.worker.digests.program import Program

DDP = Group("ddp", "", (0, 1))


class Log:
    """What would go to the agent."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []
        self.told: list[Any] = []
        self.answers: list[dict[str, Any]] = []

    def plan(self, content: dict[str, Any]) -> bool:
        self.plans.append(content)
        return True

    def values(self, values: Any) -> bool:
        self.told.append(values)
        return True

    def answer(self, content: dict[str, Any]) -> bool:
        self.answers.append(json.loads(json.dumps(content)))
        return True


class Rank:
    def __init__(self, *exclude: str) -> None:
        self.log = Log()
        self.teller = Teller(self.log, lambda: 0, lambda: 0, exclude)  # type: ignore[arg-type]
        self.book = Book(self.teller, PARAMETERS, 0)
        self.tensors = [torch.arange(3 * 2 * WIDTH, dtype=torch.float32), torch.ones(5)]
        self.names = ["big", "small"]

    def look(self, count: int) -> None:
        entries = [Entry(name=name, groups=(DDP,)) for name in self.names]
        self.book.look(self.tensors, self.tensors, lambda: entries, count)

    def ask(self, count: int, *buckets: int, stride: int = 1) -> None:
        question = {"plan": 1, "place": 0, "count": count, "buckets": buckets, "stride": stride}
        self.teller.close.ask(json.dumps(question).encode())
        self.teller.close.turn()


def numbers(text: str) -> list[int]:
    return list(array("q", base64.b64decode(text)))


def test_sums_of_a_look_that_is_over() -> None:
    rank = Rank()
    for count in range(2, 12):
        rank.look(count)
        rank.tensors[0][2 * WIDTH] += 1  # in its second row
    for count in (4, 9):
        rank.ask(count)
    rows = [numbers(answer["rows"]) for answer in rank.log.answers]
    assert [len(each) for each in rows] == [3, 3]
    assert [a == b for a, b in zip(*rows, strict=True)] == [True, False, True]
    assert rank.log.answers[0]["lengths"] == [3 * 2 * WIDTH]
    assert {len(numbers(answer["columns"])) for answer in rank.log.answers} == {WIDTH}
    rank.ask(77)
    assert rank.log.answers[-1]["why"] == "its sums are not kept any more"


def test_words_at_turns_that_the_stride_divides() -> None:
    rank = Rank()
    rank.look(2)
    rank.ask(2, 1, stride=4)
    for turn in range(1, 20):
        rank.tensors[0][2 * WIDTH] = turn
        rank.book.close_up(rank.tensors, 2 * turn + 1, turn)
    assert [answer["count"] for answer in rank.log.answers] == [9, 17, 25]
    for answer, turn in zip(rank.log.answers, (4, 8, 12), strict=True):
        raw = array("f", array("q", numbers(answer["words"])).tobytes())
        assert len(raw) == 2 * WIDTH
        assert raw[0] == turn
    assert not rank.teller.close.any


def test_rows_miss_words_that_change_places_and_columns_do_not() -> None:
    rank = Rank()
    swapped = Rank()
    words = swapped.tensors[0].view(torch.int64)
    words[3], words[9] = words[9].clone(), words[3].clone()
    for count in range(2, 12):
        rank.look(count)
        swapped.look(count)
    columns = [number for number, plan in enumerate(rank.log.plans, 1) if "tensors" in plan]
    (mine,) = [
        number for number in columns if COLUMNS in rank.log.plans[number - 1]["tensors"][0][4]
    ]
    for a, b in zip(rank.log.told, swapped.log.told, strict=True):
        assert (a.plan, a.count) == (b.plan, b.count)
        assert (a.digests == b.digests) == (a.plan != mine)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (("small",), ["big"]),
        (("b*", "x"), ["small"]),
        (("*.big",), ["big", "small"]),
        (("[bs]*",), []),
    ],
)
def test_excluded_names(patterns: tuple[str, ...], left: list[str]) -> None:
    rank = Rank(*patterns)
    rank.names = ["big", "exp_avg of small"]
    for count in (2, 3):
        rank.look(count)
    names = [tensor[0] for plan in rank.log.plans for tensor in plan["tensors"]]
    told = [name.removeprefix("exp_avg of ") for name in names if "columns" not in name]
    assert told == left


class Worker:
    """A rank that hears what it is asked."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.heard: list[dict[str, Any]] = []
        self.link_end = self

    def send(self, data: bytes) -> None:
        self.heard.append(json.loads(data))


def test_the_agent_asks_ranks_and_puts_equal_answers_together() -> None:
    asks = closeups.CloseUps()
    order = o.LookClosely(attempt=0, part=7, count=11, name="w", ranks=(0, 1, 2))
    workers = [Worker(rank) for rank in range(3)]
    for worker in workers:
        place = None if worker.rank == 2 else (4, worker.rank)
        asks.ask(order, worker, place)  # type: ignore[arg-type]
    (event,) = asks.told(0)
    assert [(sums.ranks, sums.why) for sums in event.sums] == [
        ((2,), "it has no digest of it any more")
    ]
    shape = {"dtype": "float32", "item": 4, "lengths": [8], "strides": [1]}
    for worker in workers[:2]:
        (question,) = worker.heard
        assert (question["plan"], question["place"]) == (4, worker.rank)
        asks.heard(worker.rank, {**question, **shape, "rows": "AAAA", "columns": ""})
    (event,) = asks.told(0)
    assert (event.part, event.suspect, event.count, event.name) == (7, 11, 11, "w")
    assert [(sums.ranks, sums.rows) for sums in event.sums] == [((0, 1), "AAAA")]
    assert event.shape is not None
    assert event.shape.lengths == (8,)
    assert asks.told(0) == []


def test_a_question_does_not_stay_open_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    rank.look(2)
    rank.ask(2, 1)
    assert rank.teller.close.any
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    rank.teller.close.turn()
    assert not rank.teller.close.any


def test_what_a_step_takes_in_and_gives_goes_to_the_referee() -> None:
    log = Log()
    teller = Teller(log, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    parameter = torch.nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.AdamW([parameter], 1e-2)
    watched = Watched(optimizer, 0, teller, Pace(1, 1.0, 2), Deeds())
    for step in range(1, 9):
        parameter.grad = torch.randn(64, 64)
        if step == 5:
            (plan,) = [at for at, plan in enumerate(log.plans, 1) if plan["site"] == PARAMETERS]
            asked = {"plan": plan, "place": 0, "count": 9, "buckets": [0], "stride": 2}
            teller.close.ask(json.dumps({**asked, "referee": True}).encode())
        watched.before(optimizer)
        optimizer.step()
        watched.after(optimizer)
    assert [answer["count"] for answer in log.answers] == [13, 17]
    assert [referee.judge(answer["update"]) for answer in log.answers] == ["right"] * 2


def test_a_rank_is_judged_once_and_what_cannot_be_is_unknown() -> None:
    asks = closeups.CloseUps()
    common = {"attempt": 0, "part": 7, "suspect": 11, "name": "w", "buckets": [0], "words": "AAAA"}
    for count in (13, 17):
        asks.heard(1, {**common, "count": count, "referee": True})
    asks.heard(0, {**common, "count": 13, "referee": False})
    told = {
        (event.count, sums.ranks): sums.referee for event in asks.told(0) for sums in event.sums
    }
    assert told == {(13, (1,)): "unknown", (17, (1,)): "", (13, (0,)): ""}


def test_the_first_steps_are_looked_at_closely_after_a_rollback() -> None:
    """Each of them, with all of the state, whatever the pace is; the first one always so."""
    log = Log()
    teller = Teller(log, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    watched = Watched(optimizer, 0, teller, Pace(4, 1e9, 1), Deeds(), closely=5)
    for _ in range(12):
        model(torch.ones(4)).sum().backward()
        watched.before(optimizer)
        optimizer.step()
        watched.after(optimizer)
    site = {content["plan"]: (content["site"], content["number"]) for content in log.plans}
    gradients = {v.count for v in log.told if site[v.plan][0] == "gradients"}
    assert gradients == {1, 2, 3, 4, 5, 8, 12}
    slices = {
        count: {
            site[v.plan][1]
            for v in log.told
            if v.count == count and site[v.plan][0] == "optimizer state"
        }
        for count in gradients
    }
    assert {count: len(numbers) for count, numbers in slices.items()} == {
        1: 8, 2: 8, 3: 8, 4: 8, 5: 8, 8: 1, 12: 1,
    }  # fmt: skip


def test_so_are_the_first_calls_of_a_program_without_an_optimizer() -> None:
    log = Log()
    teller = Teller(log, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    program = Program(teller, lambda: Pace(4, 1e9, 1), Deeds(), lambda code: False, closely=5)
    weight = torch.zeros(4)
    for _ in range(12):
        weight += 1.0
        program.look(sys._getframe())
    assert [values.count for values in log.told] == [1, 2, 3, 4, 5, 8, 12]


def loop_over_lists(program: Program) -> None:
    every = [torch.rand(4) for _ in range(3)]
    mine = every[1:2]
    for each in every:
        program.look(sys._getframe())
        each.add_(mine[0])


def test_a_tensor_of_two_lists_goes_by_both_names_and_by_no_loop_variable() -> None:
    """The first of the rank's own ones is another tensor on each rank."""
    log = Log()
    teller = Teller(log, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    loop_over_lists(Program(teller, lambda: Pace(1, 1e9, 1), Deeds(), lambda code: False))
    told = [tuple(name for name, *_ in content["tensors"]) for content in log.plans]
    f = "loop_over_lists"
    assert set(told) == {(f"{f}.every[0]", f"{f}.every[1]={f}.mine[0]", f"{f}.every[2]")}


@pytest.mark.parametrize(
    ("share", "alone", "last"), [(1e9, True, 8), (1e9, False, 1), (1e-9, True, 1)]
)
def test_a_rank_that_alone_has_its_state_looks_at_as_much_as_it_has_room_for(
    share: float, alone: bool, last: int
) -> None:
    log = Log()
    teller = Teller(log, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    optimizer = torch.optim.Adam(model.parameters())
    watched = Watched(optimizer, 0, teller, Pace(1, share, 1), Deeds())
    if alone:
        watched._whole = Group("zero", "", (0, 1))
    for _ in range(8):
        model(torch.ones(4)).sum().backward()
        watched.before(optimizer)
        optimizer.step()
        watched.after(optimizer)
    looked: dict[str, list[set[int]]] = {}
    site = {content["plan"]: (content["site"], content["number"]) for content in log.plans}
    for name in ("optimizer state", "optimizer state at rest"):
        at = {v.count: set() for v in log.told if site[v.plan][0] == "optimizer state"}
        for told in log.told:
            if site[told.plan][0] == name and told.count in at:
                at[told.count].add(site[told.plan][1])
        looked[name] = [at[count] for count in sorted(at)]
    assert len(looked["optimizer state"][0]) == 8
    assert len(looked["optimizer state"][-1]) == last
    if alone:  # what was left is what is looked at before the next step, whichever it is
        assert looked["optimizer state at rest"][:-1] == looked["optimizer state"][:-1]
