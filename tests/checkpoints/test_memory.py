"""State in memory: back bit by bit without a file, refused when it was altered or does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Launch


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_a_restart_goes_on_from_memory_and_opens_no_file(
    launch: Launch, tmp_path: Path, layout: str
) -> None:
    done = launch(2, "remember", tmp_path / "ck", layout=layout)
    assert done.codes == [0, 0], done.err
    for result in done.results:
        assert result["steps"] == [3, 2]  # one whole generation stays while the next is written
        assert (result["start"], result["source"], result["files"]) == (3, "memory", [])
        assert result["equal"]
        assert result["losses"] == result["expected"]
        assert result["at"] == 0
        assert result["values"] == {"position": 24}


@pytest.mark.parametrize(
    ("harm", "words"), [("data", "is not what was staged"), ("index", "its index")]
)
def test_an_altered_copy_means_the_disk_for_all_ranks_aloud(
    launch: Launch, tmp_path: Path, harm: str, words: str
) -> None:
    done = launch(2, "remember", tmp_path / "ck", layout="ddp", harm=harm)
    assert done.codes == [0, 0], done.err
    for result in done.results:
        assert (result["start"], result["source"], result["equal"]) == (1, "disk", True)
        assert result["files"]
    assert "harness: memory of step 3 passed over for the disk: rank 1: " in done.err[0]
    assert words in done.err[0]


def test_memory_that_is_not_there_or_does_not_fit_is_passed_over(
    launch: Launch, tmp_path: Path
) -> None:
    gone = launch(1, "remember", tmp_path / "a", layout="single", restore=1)
    assert gone.codes == [0], gone.err
    assert (gone.results[0]["start"], gone.results[0]["source"]) == (1, "disk")
    assert "rank 0: it is not in this node's memory" in gone.err[0]
    other = launch(2, "remember", tmp_path / "b", layout="ddp", then="fsdp-ln")
    assert other.codes == [1, 1]
    assert "passed over for the disk: rank 0: " in other.err[0]
