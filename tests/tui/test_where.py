"""The grammar of `/` and `--where`, on its own."""

import pytest

from harness.errors import UsageError
from harness.tui.cells import Cell
from harness.tui.where import parse

AXES = ("dp_replicate", "dp_shard", "pp", "tp")
PLACE = {"dp_replicate": 1, "dp_shard": 0, "pp": 2, "tp": 3}
CELL = Cell(517, "hung", 40, None, True, "step", 64, 5)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("pp=2", True),
        ("pp=0-1", False),
        ("pp=0-1,2", True),
        ("dp=1", True),
        ("dp=2", False),
        ("!tp=3", False),
        ("!tp=0", True),
        ("rank=500-600 node=64 local=5", True),
        ("rank=0-63", False),
        ("state=hung,slow", True),
        ("!state=hung", False),
        ("phase=checkpoint", False),
        ("step=<41", True),
        ("step=>=41", False),
        ("step=40", True),
        ("loss", True),
    ],
)
def test_terms(text, holds):
    where = parse(text, AXES)
    assert where.cell(CELL, PLACE) is holds
    assert where.about_ranks is (text not in ("", "loss"))


def test_lines_of_logs():
    where = parse("loss !nan", AXES)
    assert where.line("loss=2.3")
    assert not where.line("loss=nan")
    assert not where.line("saved")
    assert parse("pp=2").line("anything")


@pytest.mark.parametrize(
    ("text", "says", "help"),
    [
        ("tpp=1", "tpp=: no such axis or name", "did you mean tp?"),
        ("state=hang", "state=hang: no such state", "did you mean hung?"),
        ("rank=3-1", "'3-1' is not a number or a range", "rank=0-3,7"),
        ("rank=", "'' is not a number or a range", "rank=0-3,7"),
        ("phase=", "nothing after it", "phase=checkpoint"),
        ("a(", "not a regular expression", ""),
    ],
)
def test_what_is_wrong_is_said(text, says, help):
    with pytest.raises(UsageError) as raised:
        parse(text, AXES)
    assert says in raised.value.message
    assert help in (raised.value.help or "")
