"""Rank logs: order, folding, tails and files that grow."""

import random

from harness.ranklogs import (
    WINDOW,
    LogTail,
    attempts,
    interleave,
    offset_of_last,
    rank_files,
    read_lines,
)


def woven(lines):
    return [
        (line.ranks, line.text)
        for line in interleave({rank: iter(texts) for rank, texts in lines.items()}, 0)
    ]


def test_equal_lines_fold():
    lines = {rank: ["start", "step 1", "step 2"] for rank in range(4)}
    assert woven(lines) == [((0, 1, 2, 3), text) for text in ("start", "step 1", "step 2")]


def test_line_of_one_rank_does_not_tear_the_others_apart():
    lines = {rank: ["start", "step 1"] for rank in range(4)}
    lines[0] = ["start", "config: lr=3e-4", "step 1"]
    assert woven(lines) == [
        ((0, 1, 2, 3), "start"),
        ((0,), "config: lr=3e-4"),
        ((0, 1, 2, 3), "step 1"),
    ]


def test_lines_in_crossed_order_all_come_out():
    assert woven({0: ["a", "b"], 1: ["b", "a"]}) == [((0,), "a"), ((0, 1), "b"), ((1,), "a")]


def test_repeated_lines_are_counted_out():
    assert woven({0: ["x", "x", "x"], 1: ["x"]}) == [((0, 1), "x"), ((0,), "x"), ((0,), "x")]


def test_every_rank_keeps_its_order_whatever_it_says():
    draw = random.Random(7)
    lines = {
        rank: [draw.choice("abcdef") for _ in range(draw.randrange(3 * WINDOW))]
        for rank in range(6)
    }
    out = woven(lines)
    for rank, texts in lines.items():
        assert [text for ranks, text in out if rank in ranks] == texts


def test_window_bounds_what_is_held():
    taken = []

    def endless():
        for at in range(100_000):
            taken.append(at)
            yield f"line {at}"

    stream = interleave({0: endless(), 1: iter(["only this"])}, 0)
    for _ in range(10):
        next(stream)
    assert len(taken) <= 2 * WINDOW


def test_last_lines_are_found_from_the_end(tmp_path):
    path = tmp_path / "log"
    for text in ("", "a", "a\n", "a\nb\nc", "a\nb\nc\n", "\n\n\n", "x" * 70_000 + "\ny\n"):
        path.write_text(text)
        lines = text.splitlines()
        for count in range(5):
            kept = lines[len(lines) - count :] if count < len(lines) else lines
            assert list(read_lines(path, offset_of_last(path, count))) == (kept if count else [])


def test_carriage_returns_leave_what_a_terminal_shows(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"10%\r50%\r100%\ndone\r\nno end \xff")
    assert list(read_lines(path)) == ["100%", "done", "no end \ufffd"]


def test_files_are_found_by_attempt_and_rank(tmp_path, scenes):
    scenes.write_logs(tmp_path, 0, {0: ["a"]})
    scenes.write_logs(tmp_path, 10, {2: ["b"], 11: ["c"]})
    (tmp_path / "logs" / "attempt10" / "notes.txt").write_text("not a log")
    assert attempts(tmp_path) == [0, 10]
    assert list(rank_files(tmp_path, 10)) == [2, 11]
    assert attempts(tmp_path / "nowhere") == []


def test_tail_waits_one_round_for_the_other_ranks(tmp_path, scenes):
    scenes.write_logs(tmp_path, 0, {0: [], 1: []})
    first, second = rank_files(tmp_path, 0).values()
    tail = LogTail(tmp_path, 0)
    assert tail.poll() == []
    with first.open("a") as file:
        file.write("step 1\nonly me\npart")
    assert tail.poll() == []
    with second.open("a") as file:
        file.write("step 1\n")
    texts = [(line.ranks, line.text) for line in tail.poll()]
    assert texts[0] == ((0, 1), "step 1")
    texts += [(line.ranks, line.text) for line in tail.poll()]
    assert texts[1] == ((0,), "only me")
    assert [line.text for line in tail.poll(final=True)] == ["part"]


def test_tail_takes_up_files_that_appear(tmp_path, scenes):
    tail = LogTail(tmp_path, 3)
    assert tail.poll() == []
    scenes.write_logs(tmp_path, 3, {0: ["hello"], 1: ["hello"]})
    assert [(line.ranks, line.text) for line in tail.poll()] == [((0, 1), "hello")]


def test_tail_of_a_long_line_without_end_is_bounded(tmp_path, scenes):
    scenes.write_logs(tmp_path, 0, {0: []})
    path = rank_files(tmp_path, 0)[0]
    tail = LogTail(tmp_path, 0)
    with path.open("a") as file:
        file.write("x" * (3 << 20))
    shown = [line.text for line in tail.poll()]
    assert shown
    assert sum(map(len, shown)) + len(tail.poll(final=True)[0].text) == 3 << 20
