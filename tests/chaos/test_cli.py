"""`harness chaos` and `harness inject` as typed, where nothing has to run for the answer."""

import json
import re
from pathlib import Path

import pytest

from harness.chaos import kinds
from harness.cli import group

Captured = pytest.CaptureFixture[str]


def test_all_kinds_are_listed(capsys: Captured) -> None:
    assert group.call(["chaos", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(kinds.names())
    assert max(map(len, lines)) <= 100
    assert group.call(["chaos", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [kind["name"] for kind in told["kinds"]] == [k.name for k in kinds.everything()]


@pytest.mark.parametrize("name", ["partition", "node_kill", "slow"])
def test_a_kind_is_explained(name: str, capsys: Captured) -> None:
    assert group.call(["chaos", "explain", name]) == 0
    text = capsys.readouterr().out
    assert text.startswith(name)
    assert "must be said" in text


def test_a_dry_run_says_what_would_happen_and_starts_nothing(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "[run]\nworkload = 'dp4'\n[[fault]]\nkind = 'stop'\nat = { tp = 0 }\nstep = 9\n"
    Path("plan.toml").write_text(plan)
    assert group.call(["chaos", "run", "plan.toml", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "--chaos-allowed --nproc-per-node 4" in text
    assert "stop of the rank at tp=0 after step 9" in text
    assert "rank_frozen" in text
    many = ["chaos", "campaign", "--kinds", "kill,stop", "--workloads", "ddp,dp4", "--dry-run"]
    assert group.call(many) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    assert group.call(["chaos", "campaign", "--hours", "1", "--seed", "3", "--dry-run"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 10
    assert [each.name for each in tmp_path.iterdir()] == ["plan.toml"]


def test_a_campaign_that_is_gone_on_with_has_the_options_it_was_begun_with(
    tmp_path: Path, capsys: Captured
) -> None:
    begin = ["chaos", "campaign", "--kinds", "kill,stop", "--workloads", "dp4", "--minutes", "0"]
    assert group.call([*begin, "--out", str(tmp_path)]) == 2
    assert "nothing is judged" in capsys.readouterr().err
    (folder,) = tmp_path.iterdir()
    again = ["chaos", "campaign", "--resume", str(folder), "--dry-run"]
    assert group.call(again) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0]) == (6, "dp4: kill@0")
    assert group.call([*again, "--kinds", "stop"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    for broken in ('{"names": 3}', '{"series": "many"}', '{"names": '):
        (folder / "campaign.json").write_text(broken)
        assert group.call(again) == 2
        assert len(capsys.readouterr().err.splitlines()) <= 2
    (folder / "campaign.json").unlink()
    assert group.call(again) == 2
    assert "no campaign was begun there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("chaos", "missing command: list, explain, run, campaign or replay"),
        ("chaos explain kll", "no kind of fault is called 'kll'"),
        ("chaos run nowhere.toml", "nowhere.toml: No such file or directory"),
        ("chaos campaign --kinds kil", "no kind of fault is called 'kil'"),
        ("chaos campaign --areas people", "--areas people: no such area"),
        ("chaos campaign --ranks first", "--ranks first: not numbers"),
        ("chaos campaign --workloads gpt", "no workload is called 'gpt'"),
        ("inject kll --rank 0", "no kind of fault is called 'kll'"),
        ("inject kill", "kill is done to a rank"),
        ("inject kill --rank 0 --at tp=1", "--at and --rank exclude each other"),
        ("inject slow --rank 0 --set late", "--set late: no value"),
        ("inject slow --rank 0 --set late=3", "slow has no parameter 'late'"),
        ("inject kill --rank 0 nobody", "no run 'nobody' in runs"),
    ],
)
def test_a_wrong_line_is_answered_in_two(
    arguments: str, error: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert group.call(arguments.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert re.sub(r"^error\[H\d{3}\]", "error", lines[0]) == f"error: {error}"
    assert len(lines) <= 2
