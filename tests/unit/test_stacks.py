"""Stacks of many ranks on one screen."""

from harness import stacks
from harness.events import EvidenceTaken
from harness.incidents import Where
from harness.sightings import ChildTaken, Frame, ProcessFacts, RankStack

TORCH = "/env/lib/python3.11/site-packages/torch/distributed"
TRAIN = Frame(file="/home/me/train.py", line=11, function="main")
WRAPPER = Frame(file=f"{TORCH}/c10d_logger.py", line=83, function="_log.<locals>.wrapper")


def waiting(rank: int, line: int = 3252) -> RankStack:
    inner = Frame(file=f"{TORCH}/distributed_c10d.py", line=line, function="all_reduce")
    return standing(rank, inner, WRAPPER, TRAIN)


def standing(rank: int, *frames: Frame, state: str = "S") -> RankStack:
    user = next((frame for frame in frames if frame.file.startswith("/home")), None)
    where = None if user is None else Where(file=user.file, line=user.line, function=user.function)
    return RankStack(
        rank=rank, pid=100 + rank, state=state, frames=frames, frames_by="py-spy", user_frame=where
    )


LOADER = Frame(file="/home/me/data.py", line=7, function="load")


def test_the_odd_one_out_comes_first_and_library_lines_do_not_count() -> None:
    taken = [waiting(0), standing(1, LOADER, TRAIN), waiting(2, line=3260), waiting(3)]
    assert [group.ranks for group in stacks.grouped(taken)] == [[1], [0, 2, 3]]
    assert stacks.sentence(taken) == (
        "3 of 4 ranks wait in all_reduce at train.py:11 in main; rank 1 is at data.py:7 in load"
    )
    assert stacks.text(taken).splitlines() == [
        stacks.sentence(taken),
        "",
        "rank 1 (pid 101, by py-spy)",
        "  > load  /home/me/data.py:7",
        "    main  /home/me/train.py:11",
        "",
        "ranks 0,2-3 (by py-spy)",
        "    all_reduce  torch/distributed/distributed_c10d.py:3252",
        "    _log.<locals>.wrapper  torch/distributed/c10d_logger.py:83",
        "  > main  /home/me/train.py:11",
    ]


def test_who_waits_for_others_comes_last_among_equals() -> None:
    taken = [waiting(0), standing(1, LOADER)]
    assert [group.ranks for group in stacks.grouped(taken)] == [[1], [0]]
    assert stacks.sentence(taken) == (
        "rank 0 waits in all_reduce at train.py:11 in main; rank 1 is at data.py:7 in load"
    )


def test_sentences_of_one_group_of_many_and_of_none() -> None:
    assert stacks.sentence([]) == "no stacks"
    assert stacks.sentence([standing(5, LOADER)]) == "rank 5 is at data.py:7 in load"
    together = [standing(rank, LOADER) for rank in range(8)]
    assert stacks.sentence(together) == "all 8 ranks are at data.py:7 in load"
    frozen = standing(0, LOADER, state="T")
    assert stacks.sentence([frozen, *together[1:]]) == (
        "7 of 8 ranks are at data.py:7 in load; rank 0 stands stopped at data.py:7 in load"
    )
    gone = RankStack(rank=9, pid=109, state="Z", missing="the process is gone (exit code 1)")
    dark = RankStack(rank=8, pid=108, state="S", missing="py-spy was refused")
    words = stacks.sentence([*together, gone, dark])
    assert words.endswith("; rank 8 cannot be seen; rank 9 is gone")
    assert "    no stack: py-spy was refused" in stacks.text([dark]).splitlines()
    apart = [
        standing(rank, Frame(file="/home/me/a.py", line=rank, function="f")) for rank in range(9)
    ]
    assert stacks.sentence(apart).endswith("; 5 more elsewhere")


def test_json_has_all_of_it() -> None:
    child = ChildTaken(
        pid=7, name="pt_data_worker", process=None, frames=(LOADER,), user_frame=None
    )
    parent = RankStack(
        rank=1, pid=9, state="S", frames=(TRAIN,), children=(child,), variables=(("x = 1",),)
    )
    made = stacks.as_json([waiting(0), parent])
    assert [group["ranks"] for group in made["groups"]] == [[1], [0]]
    assert made["groups"][1]["waits_in"] == "all_reduce"
    assert made["groups"][1]["at"] == {
        "file": "/home/me/train.py",
        "line": 11,
        "function": "main",
    }
    assert made["ranks"][1]["children"][0]["name"] == "pt_data_worker"
    assert made["ranks"][1]["variables"] == [["x = 1"]]
    lines = stacks.text([parent]).splitlines()
    assert "        x = 1" in lines
    assert "    child of rank 1: pt_data_worker (pid 7) at /home/me/data.py:7 in load" in lines


def test_evidence_becomes_a_stack() -> None:
    facts = ProcessFacts(state="T", wchan="", cpu_seconds=1.0, rss_bytes=1, threads=1)
    taken = EvidenceTaken(
        collection=0, rank=2, process=facts, missing=("stack: it is gone", "flight record: no")
    )
    stack = stacks.of_evidence(taken, 77)
    assert (stack.rank, stack.pid, stack.state, stack.missing) == (2, 77, "T", "it is gone")


def test_of_a_long_stack_the_own_line_is_always_shown() -> None:
    """Python's own steps of an import are left out, and count for nothing."""
    importing = Frame(file="<frozen importlib._bootstrap>", line=241, function="_find_and_load")
    deep = [Frame(file=f"{TORCH}/a.py", line=at, function=f"f{at}") for at in range(40)]
    frames = [each for frame in deep for each in (frame, importing)]
    outer = [Frame(file="/env/site-packages/run.py", line=at, function="run") for at in range(30)]
    lines = stacks.text([standing(0, *frames, TRAIN, *outer)]).splitlines()[3:]
    assert not any("importlib" in line for line in lines)
    assert lines[11] == "    f11  torch/distributed/a.py:11"
    assert lines[12] == "    ... 28 more frames"
    assert lines[13] == "  > main  /home/me/train.py:11"
    assert lines[-1] == "    ... 19 more frames"
    assert len(lines) == 26
    near = stacks.text([standing(0, *deep[:3], TRAIN, *outer)]).splitlines()[3:]
    assert near[3] == "  > main  /home/me/train.py:11"
    assert near[-1] == "    ... 10 more frames"
    assert len(near) == 25
