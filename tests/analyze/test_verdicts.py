"""Every kind of hang, through dumps on disk, in the forms that PyTorch has written them."""

from pathlib import Path

import pytest

from harness.diagnosis.waits import judge
from harness.flightrecord import folder
from harness.flightrecord.readers import Answer
from harness.flightrecord.scan import digest
from harness.flightrecord.untrusted import Unreadable, parse
from harness.incidents import Verdict
from tests.analyze.job import Form, Job, Stop, write
from tests.analyze.programs import CASES, Case, edited, megatron


def verdicts(job: Job, where: Path, form: Form | None = None) -> list[Verdict]:
    """Of the dumps on disk, read in this process: a reader for each of so many would take long."""
    files = sorted(write(job, where, form).iterdir())
    return judge(folder.collect(answer(path) for path in files).waits)


def answer(path: Path) -> Answer:
    return path, digest(parse(path.read_bytes())), ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_first_failing_ranks_are_named(case: Case, tmp_path: Path) -> None:
    found = verdicts(case.make(), tmp_path)
    assert [v.verdict for v in found] == ([] if case.verdict is None else [case.verdict])
    if found:
        assert found[0].first_failing == case.ranks
        assert case.says in found[0].cause
        assert ("tells" in found[0].reason) == case.tied
        assert not set(found[0].victims) & set(case.ranks)


FORMS = [
    Form(version=f"2.{minor}", active=active, as_json=as_json, frames=minor % 2 == 0)
    for minor in range(5, 11)
    for active in (False, True)
    for as_json in (False, True)
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_late_rank_is_found_in_every_form(form: Form, tmp_path: Path) -> None:
    """Tensor, pipeline and data parallel peers all wait, for it or for each other."""
    job = Job(edited(megatron()[0], 6, 9, Stop(), drop=0)).run()
    (verdict,) = verdicts(job, tmp_path, form)
    assert verdict.verdict == "rank_stuck_outside_collective"
    assert verdict.first_failing == (6,)
    assert len(verdict.victims) == 15


@pytest.mark.parametrize("call", range(8, 16))
def test_a_broken_device_is_found_wherever_it_breaks(call: int, tmp_path: Path) -> None:
    """Also where only what is pending is on record: its peers have finished what it has not."""
    job = Job(megatron()[0], broken={9: call}).run()
    (verdict,) = verdicts(job, tmp_path, Form(active=True))
    assert verdict.first_failing == (9,)


@pytest.mark.parametrize("rank", [1, 6, 11, 15])
@pytest.mark.parametrize("call", range(8, 17))
def test_a_late_rank_is_found_wherever_it_is(rank: int, call: int, tmp_path: Path) -> None:
    job = Job(edited(megatron()[0], rank, call, Stop(), drop=0)).run()
    for form in (Form(active=True), Form(ring=12)):
        (verdict,) = verdicts(job, tmp_path, form)
        assert verdict.first_failing == (rank,)
        assert verdict.verdict == "rank_stuck_outside_collective"


def test_ten_bytes_do_not_take_all_memory() -> None:
    """A pickle may name any place in its memo, which Python makes room for."""
    with pytest.raises(Unreadable, match="more memory than a dump needs"):
        parse(b"\x80\x02}r\xff\xff\xff\x7f.")
