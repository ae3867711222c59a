"""Coordinates on the mesh, and the rank that is there."""

import pytest

from harness.chaos.address import rank_at
from harness.errors import UsageError
from harness.state import RunState


def mesh() -> RunState:
    state = RunState()
    for rank in range(8):
        state.coordinates[rank] = {
            "pp": rank // 4, "dp_replicate": rank // 2 % 2, "dp_shard": 0, "tp": rank % 2,
        }  # fmt: skip
    return state


@pytest.mark.parametrize(
    ("at", "rank"),
    [
        ({"pp": 1, "dp_replicate": 0, "tp": 1}, 5),
        ({"pp": 1, "dp": 1, "tp": 0}, 6),
        ({"tp": 0, "pp": 0, "dp": 0}, 0),
    ],
)
def test_coordinates_are_a_rank(at: dict[str, int], rank: int) -> None:
    assert rank_at(at, mesh()) == rank


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"pp": 1}, "pp=1 is not one rank: 4, 5, 6, 7 are there"),
        ({"pp": 7, "dp": 0, "tp": 0}, "no rank is at pp=7, dp=0, tp=0"),
        ({"ep": 0}, "the mesh has no axis 'ep'"),
    ],
)
def test_what_is_no_rank_is_said(at: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rank_at(at, mesh())


def test_a_run_without_a_mesh_has_no_coordinates() -> None:
    with pytest.raises(UsageError, match="the run has declared no mesh"):
        rank_at({"tp": 0}, RunState())
