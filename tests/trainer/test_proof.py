"""Every row of the matrix, and layouts drawn at random, against one process in double precision.

The bounds and why they are what they are: harness/trainer/prove.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.trainer.compose import layout
from harness.trainer.config import ConfigError
from harness.trainer.flags import toml

ROOT = Path(__file__).parents[2]
MATRIX = ROOT / "trainer" / "matrix.toml"
ROWS: list[dict[str, Any]] = toml(MATRIX.read_text(encoding="utf-8"))["row"]
CORE = ("zero-bubble V", "cp, ring", "ep")


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


ranks_and_flags = st.fixed_dictionaries(
    {
        "ranks": st.sampled_from([2, 4, 8]),
        "--tp": st.sampled_from([1, 2, 4]),
        "--pp": st.sampled_from([1, 2, 4]),
        "--cp": st.sampled_from([1, 2]),
        "--cp-method": st.sampled_from(["ring", "ulysses", "gather"]),
        "--dp-shard": st.sampled_from([1, 2, 4]),
        "--zero": st.sampled_from(["auto", "1", "2", "3"]),
        "--schedule": st.sampled_from(
            ["1f1b", "gpipe", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v"]
        ),
        "--micro-batches": st.sampled_from([1, 2, 4, 8]),
        "--experts": st.sampled_from([0, 0, 4]),
        "--ep": st.sampled_from([1, 2, 4]),
        "--recompute": st.sampled_from(["none", "selective", "full"]),
        "--d-model": st.sampled_from([32, 48]),
        "--heads": st.sampled_from([4, 8]),
        "--layers": st.sampled_from([4, 8]),
        "--seq-len": st.sampled_from([16, 32]),
        "--global-batch": st.sampled_from([8, 16]),
        "--optimizer": st.sampled_from(["adamw", "lamb", "lars", "sgd"]),
    }
)


@pytest.mark.slow
@settings(max_examples=1, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_layouts_drawn_at_random(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    from harness.trainer.prove import Row

    rows: list[Row] = []
    while len(rows) < 12:
        drawn = data.draw(ranks_and_flags)
        flags = " ".join(f"{name} {value}" for name, value in drawn.items() if name != "ranks")
        row = Row(name=f"drawn {len(rows)}", ranks=drawn["ranks"], flags=flags)
        try:
            layout(row.config, row.ranks)
        except ConfigError:
            continue
        rows.append(row)
    assume(rows)
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
