"""Operations that are all alike: only the lines they were called from tell who made one more."""

from collections.abc import Sequence

from harness.collectives import Collective, GroupCreation
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.live import rank_wait
from harness.diagnosis.waits.record import Waits
from harness.events import EvidenceTaken
from harness.incidents import Verdict, Where
from harness.sightings import ProcessFacts

STEP, SAVE, END = "/u/train.py:9:main", "/u/train.py:20:save", "/u/train.py:30:finish"
LEFT, RIGHT = "/u/train.py:40:first", "/u/train.py:42:rest"


def verdicts(lines: Sequence[Sequence[str]], waiting: Sequence[int]) -> list[Verdict]:
    """Ranks that called barriers from `lines`; those in `waiting` stand in their last one."""
    made = GroupCreation(
        pg="0", pg_desc="default_pg", ranks=tuple(range(len(lines))), member=True, begun_ns=1,
        ended_ns=2,
    )  # fmt: skip
    ranks = {}
    for rank, sites in enumerate(lines):
        entries = tuple(
            Collective(
                record_id=at, pg="0", pg_desc="default_pg", seq_id=at + 1, op="gloo:barrier",
                sizes=(), dtypes=(), state="scheduled",
                retired=not (rank in waiting and at == len(sites) - 1), created_ns=1000 + at,
                site=site,
            )
            for at, site in enumerate(sites)
        )  # fmt: skip
        seen = EvidenceTaken(
            collection=1, rank=rank, collectives=entries, groups=(made,),
            process=ProcessFacts(state="S", wchan="", cpu_seconds=1.0, rss_bytes=1, threads=4),
            user_frame=Where(file="/u/train.py", line=50, function="wait_for_export"),
        )  # fmt: skip
        ranks[rank] = rank_wait(seen)
    return judge(Waits(world_size=len(lines), ranks=ranks))


def test_one_call_too_many() -> None:
    others = [STEP, STEP, END]
    (verdict,) = verdicts([[STEP, STEP, SAVE, END], others, others], [0])
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (0,))
    assert verdict.cause == (
        "rank 0 made one operation too many: at #3 on default_pg rank 0 called barrier at"
        " train.py:20 (save) and ranks 1-2 barrier at train.py:30 (finish); now rank 0 waits in"
        " barrier #4 on default_pg where nobody else comes"
    )
    assert verdict.where == Where(file="/u/train.py", line=20, function="save")


def test_one_call_left_out() -> None:
    others = [STEP, STEP, SAVE, STEP, STEP]
    (verdict,) = verdicts([others, [STEP, STEP, STEP, STEP], others], [0, 2])
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (1,))
    assert "rank 1 skipped one operation: at #3" in verdict.cause


def test_two_ranks_cannot_be_told_apart() -> None:
    (verdict,) = verdicts([[STEP, SAVE, END], [STEP, END]], [0])
    assert (verdict.verdict, verdict.first_failing) == ("collective_mismatch", (0, 1))
    assert "nothing on record tells" in verdict.reason


def test_a_stuck_rank_is_stuck_whatever_lines_there_are() -> None:
    programs = [
        [[STEP, END, STEP], [STEP, END]],  # the lines come in turn, and 1 just has not come yet
        [[LEFT, STEP, LEFT], [RIGHT, STEP]],  # the branches of an `if`
        [[LEFT, RIGHT, LEFT, RIGHT], [RIGHT, LEFT, RIGHT]],  # in turn, each once the first
        [[STEP, LEFT, STEP, STEP], [STEP, RIGHT, STEP]],
        [[STEP, "", STEP], [STEP, ""]],
        [["", "", ""], ["", ""]],
        [[STEP] * 4, [STEP] * 3],
    ]
    for lines in programs:
        (verdict,) = verdicts(lines, [0])
        assert verdict.verdict == "rank_stuck_outside_collective", lines
        assert verdict.first_failing == (1,)
