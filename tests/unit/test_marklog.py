"""The marks' own parts: the ring in shared memory, and the program's variables beside them."""

import mmap
import sys
import weakref
from typing import Any

import pytest

from harness.worker import layout, marklog, marks, p2p, sites
from harness.worker.rhythm import Rhythm


def ring() -> tuple[marklog.MarkWriter, marklog.MarkReader]:
    memory = mmap.mmap(-1, 64 + marklog.REGION_BYTES)
    return marklog.MarkWriter(memory, 64), marklog.MarkReader(memory, 64)


def test_marks_come_back_and_lost_ones_are_counted() -> None:
    writer, reader = ring()
    assert reader.new() == []
    writer.put(marklog.FORWARD, 77, 3, (5, 6, -9), (11, -2, 12, 0), tuple(range(32)))
    (mark,) = reader.new()
    assert (mark.kind, mark.key, mark.count) == (marklog.FORWARD, 77, 3)
    assert (mark.site, mark.name, mark.value) == (5, 6, -9)
    assert mark.counters == ((11, -2), (12, 0))
    assert mark.groups == tuple((at, at + 1) for at in range(0, 32, 2))
    for count in range(2 * marklog.CAPACITY):
        writer.put(marklog.STEP, 1, count, (1, 0, 0), (), (1, count))
    counts = [mark.count for mark in reader.new()]
    assert counts == list(range(2 * marklog.CAPACITY))[-len(counts) :]
    assert len(counts) + reader.lost == 2 * marklog.CAPACITY
    assert reader.new() == []


class Heavy:
    """Stands for a tensor that is to be freed at once."""


def test_counters_are_found_and_nothing_is_kept() -> None:
    rhythm, seen = Rhythm(), []

    def step(number: int, epoch: int) -> object:
        heavy = Heavy()
        kept = weakref.ref(heavy)
        seen.append(rhythm.look([sys._getframe(0)], len(seen) + 1))
        del heavy
        return kept()

    for number in [0, 1, 2, 3, 3, 4]:
        assert step(number, 7) is None
    found = [(drifts[1::2], name, value) for drifts, name, value in seen]
    assert found[:2] == [([], "", 0)] * 2
    # The fifth mark came without the step going on: from there it is one behind.
    assert found[2:] == [([drift], "number", value) for drift, value in
                         [(0, 2), (0, 3), (-1, 3), (-1, 4)]]  # fmt: skip


def test_functions_that_hold_their_variables_are_not_asked() -> None:
    rhythm = Rhythm()

    def step(number: int) -> dict[str, Any]:
        held = locals()
        rhythm.look([sys._getframe(0)], number)
        return held

    for number in range(1, 6):
        assert step(number)["number"] == number
    # From Python 3.13 on what `locals()` gives is nobody else's (PEP 667), so asking harms nothing.
    assert bool(rhythm.counters) == (sys.version_info >= (3, 13))


class Group:
    """Stands for a ProcessGroup that has made as many collectives as steps."""

    seq = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.seq


class Program:
    """Makes marks at moments of its own, and reads what was recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = mmap.mmap(-1, layout.BYTES)
        self.now = 100.0
        monkeypatch.setattr(marks, "monotonic", lambda: self.now)
        recorder = p2p.make(memory, layout.GROUPS_AT, layout.P2P_AT)
        lines = sites.SiteWriter(memory, layout.SITES_AT)
        self.marker = marks.Marker(marklog.MarkWriter(memory, layout.MARKS_AT), lines, recorder)
        self.reader = marklog.MarkReader(memory, layout.MARKS_AT)
        self.group = Group()
        recorder.made(self.group, 1, [0, 1])

    def go(self, kinds: tuple[int, ...], *parts: tuple[float, int]) -> list[dict[int, list[int]]]:
        """Parts of (seconds a step, steps), with a collective and marks of `kinds` at each step:
        the counts that each part recorded, by kind."""
        told = []
        for seconds, steps in parts:
            for _ in range(steps):
                self.group.seq += 1
                self.now += seconds
                for kind in kinds:
                    self.marker.mark(kind, sys._getframe(0))
            made = self.reader.new()
            assert all(mark.groups == ((1, mark.count),) for mark in made)
            told.append({k: [mark.count for mark in made if mark.kind == k] for k in kinds})
        return told


def test_a_program_of_short_steps_has_every_second_count_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then every fourth, and so on, until records are a tenth of a second apart."""
    parts = (0.01, 66), (0.01, 126), (0.01, 2000), (1.0, 200)
    told = [part[marklog.STEP] for part in Program(monkeypatch).go((marklog.STEP,), *parts)]
    assert told[0] == [*range(1, 65), 66]
    assert told[1] == list(range(68, 193, 2))
    assert told[2][-30:] == list(range(2192 - 16 * 29, 2193, 16))
    assert told[3][-50:] == list(range(2343, 2393))  # the steps are long again


def test_steps_that_are_not_short_are_all_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = Program(monkeypatch).go((marklog.STEP,), (0.03, 200))
    assert told[marklog.STEP] == list(range(1, 201))


def test_forwards_of_short_steps_are_left_out_where_there_are_backward_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, backward = both = marklog.FORWARD, marklog.BACKWARD
    program = Program(monkeypatch)
    first, then, longer = program.go(both, (0.01, 32), (0.01, 32), (1.0, 200))
    assert first == {kind: list(range(1, 33)) for kind in both}
    assert not then[forward]
    assert then[backward] == list(range(34, 65, 2))
    assert not longer[forward]  # their counts would not be those of other ranks
    assert longer[backward][-50:] == list(range(215, 265))
    assert program.marker.total == 2 * 264

    alone = Program(monkeypatch).go((forward,), (0.01, 66), (0.01, 100))
    assert [part[forward][-1] for part in alone] == [66, 166]
