"""Every row of the matrix, and layouts drawn at random, against one process in double precision.

The bounds and why they are what they are: harness/trainer/prove.py.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.trainer.compose import layout
from harness.trainer.config import ConfigError
from harness.trainer.flags import toml

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "trainer" / "matrix.toml"
ROWS: list[dict[str, Any]] = toml(MATRIX.read_text(encoding="utf-8"))["row"]
CORE = ("zero-bubble V", "cp, ring", "ep", "fully_shard, replicated", "fully_shard, half the batch")
TIES = """
[[row]]
name = "bf16, experts on one side"
ranks = 2
flags = "--precision bf16 --experts 12 --dp-shard 2 --ep 2 --recompute full --seq-len 128"
"""
"""Tokens whose experts are as good as equal: in bf16 some go to others than in double precision."""


def proven(*arguments: str) -> list[dict[str, Any]]:
    """Rows that were run, and nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.trainer.prove", "--json", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        check=False,
    )
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in found if row["wrong"]] == []
    assert done.returncode == 0
    return found


def test_the_core_of_the_matrix() -> None:
    assert {row["name"] for row in proven("--only", ";".join(CORE))} == set(CORE)


@pytest.mark.slow
def test_a_tie_that_another_format_breaks_otherwise_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "ties.toml").write_text(TIES)
    (row,) = proven("--matrix", str(tmp_path / "ties.toml"))
    assert row["moved"] > 0
    assert 0 < row["gap"] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("ranks", sorted({row["ranks"] for row in ROWS}))
def test_the_whole_matrix(ranks: int) -> None:
    names = [row["name"] for row in ROWS if row["ranks"] == ranks]
    assert [row["name"] for row in proven("--ranks", str(ranks))] == names


def test_every_row_fits_and_is_named_once() -> None:
    from harness.trainer.prove import rows

    found = rows()
    assert len({row.name for row in found}) == len(found)
    for row in found:
        layout(row.config, row.ranks)


LAYOUTS = int(os.environ.get("LAYOUTS", "0"))
"""How many are drawn, others each time; 0: always the same twelve. For a night `LAYOUTS=600`."""
TOGETHER = 12
MESHES = [
    (pp, dp, cp, tp)
    for pp, dp, cp, tp in itertools.product((1, 2, 3, 4), range(1, 9), (1, 2, 3), (1, 2, 4))
    if 2 <= pp * dp * cp * tp <= 8
]


@st.composite
def drawn_layouts(draw: st.DrawFn) -> tuple[int, str]:
    """Ranks and flags, most of which fit together."""

    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    pp, dp, cp, tp = draw(st.sampled_from(MESHES))
    shard = one(*(n for n in range(1, dp + 1) if dp % n == 0))
    beside = shard * cp * tp
    experts = one(0, 0, 12)
    splits = [n for n in range(1, beside + 1) if beside % n == 0 and 12 % n == 0]
    schedules = ("1f1b", "gpipe", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v")
    micro = one(pp, 2 * pp) if pp > 1 else one(1, 2, 3)
    schedule = one(*schedules) if pp > 1 else "1f1b"
    layers = 2 * pp * one(1, 2) if pp > 1 else one(1, 2, 3)
    lean = pp > 1 and schedule in ("1f1b", "gpipe") and one(False, True)
    flags = {
        "--pp": pp,
        "--cp": cp,
        "--tp": tp,
        "--dp-shard": shard,
        "--experts": experts,
        "--ep": one(*splits) if experts else 1,
        "--zero": one("auto", "1") if pp > 1 else one("auto", "1", "2", "3"),
        "--schedule": schedule,
        "--micro-batches": micro,
        "--global-batch": dp * micro * one(1, 2),
        "--cp-method": one("ring", "ulysses", "gather"),
        "--recompute": one("none", "selective", "full"),
        "--d-model": one(32, 48),
        "--heads": one(4, 8),
        "--layers": layers,
        "--seq-len": 2 * cp * tp * one(2, 5, 8),
        "--optimizer": one("adamw", "lamb", "lars", "sgd"),
        "--precision": one("fp64", "fp64", "fp64", "fp32", "bf16", "fp16", "fp8"),
    }
    if experts:
        flags |= {
            "--top-k": one(1, 2, 3),
            "--balance": one("loss", "bias", "none"),
            "--capacity": one(0, 1.0),
        }
    if lean:  # the last stage is the head alone, and what that spares goes to the first
        each = layers // pp
        flags["--stage-layers"] = ",".join(map(str, (2 * each, *[each] * (pp - 2), 0)))
    switches = ["--shared-expert"] if experts and one(False, True) else []
    switches += [name for name in ("--meta-init", "--offload") if one(False, False, True)]
    # With a tied head each format is off by some four times as much, in one process too, and at
    # these sizes that can be more than its bound: docs/trainer.md.
    if flags["--precision"] in ("fp64", "fp32") and one(False, False, True):
        switches.append("--tied")
    said = [f"{name} {value}" for name, value in flags.items()]
    return pp * dp * cp * tp, " ".join(said + switches)


@pytest.mark.slow
@pytest.mark.timeout(0 if LAYOUTS else 900)
@settings(
    max_examples=max(1, LAYOUTS // TOGETHER),
    deadline=None,
    database=None,
    derandomize=not LAYOUTS,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_layouts_drawn_at_random(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    from harness.trainer.prove import Row

    rows: list[Row] = []
    while len(rows) < TOGETHER:
        ranks, flags = data.draw(drawn_layouts())
        row = Row(name=f"drawn {len(rows)}", ranks=ranks, flags=flags)
        try:
            layout(row.config, row.ranks)
        except ConfigError:
            continue
        rows.append(row)
    file = tmp_path_factory.mktemp("drawn") / "matrix.toml"
    lines = [f'[[row]]\nname = "{r.name}"\nranks = {r.ranks}\nflags = "{r.flags}"\n' for r in rows]
    file.write_text("".join(lines))
    assert len(proven("--matrix", str(file))) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "no such"], "error: --only: no row is called 'no such'; see "),
        (["--ranks", "two"], "error: --ranks two: numbers with commas between\n"),
        (["--ranks", "3"], "error: no row is left to prove\n"),
        (["--matrix", "/nowhere"], "error: --matrix /nowhere: No such file or directory\n"),
    ],
)
def test_what_cannot_be_proven_gets_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.trainer.prove import main

    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(said)
