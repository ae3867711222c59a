"""Which lines of a program stand below a condition on the rank, read from its source."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.agent import branches
from harness.sightings import Frame

Look = Callable[[str], list[str]]


@pytest.fixture
def above(tmp_path: Path) -> Look:
    """The conditions above the line of a program that is marked with `# here`, without places."""

    def look(source: str) -> list[str]:
        file = tmp_path / "train.py"
        file.write_text(source)
        line = 1 + next(at for at, text in enumerate(source.splitlines()) if "# here" in text)
        found = branches.above([Frame(file=str(file), line=line, function="main")])
        return [text.removeprefix(f"{file}:") for text in found]

    return look


def test_names_that_say_rank(above: Look) -> None:
    assert above("if rank == 0:\n    barrier()  # here\n") == ["1: if rank == 0:"]
    assert above("if self.global_rank > 0:\n    barrier()  # here\n")
    assert above("if not is_main_process():\n    barrier()  # here\n")
    assert above("if dist.get_rank() == 0:\n    barrier()  # here\n")
    assert above("if get_data_parallel_rank() == 0:\n    barrier()  # here\n")
    assert above("if accelerator.is_main_process:\n    barrier()  # here\n")


def test_the_environment(above: Look) -> None:
    assert above('if os.environ["RANK"] == "0":\n    barrier()  # here\n')
    assert above('if os.getenv("LOCAL_RANK", "0") == "0":\n    barrier()  # here\n')


def test_a_name_that_was_given_the_rank(above: Look) -> None:
    source = "R, W = dist.get_rank(), dist.get_world_size()\nif R == 0:\n    barrier()  # here\n"
    assert above(source) == ["2: if R == 0:"]
    assert above("R, W = dist.get_rank(), 4\nif W == 4:\n    barrier()  # here\n") == []
    assert above("me: int = dist.get_rank()\nif me:\n    barrier()  # here\n")


def test_names_made_of_such_names(above: Look) -> None:
    source = (
        "main = chief == 0\nchief = dist.get_rank()\nif main and verbose:\n    barrier()  # here\n"
    )
    assert above(source) == ["3: if main and verbose:"]


def test_the_other_branch_counts_too(above: Look) -> None:
    assert above("if rank == 0:\n    save()\nelse:\n    barrier()  # here\n") == [
        "1: if rank == 0:"
    ]
    elif_ = "if done:\n    pass\nelif rank == 0:\n    pass\nelse:\n    barrier()  # here\n"
    assert above(elif_) == ["3: elif rank == 0:"]


def test_loops_and_conditional_expressions(above: Look) -> None:
    assert above("while rank > step:\n    barrier()  # here\n") == ["1: while rank > step:"]
    assert above("x = barrier() if rank == 0 else None  # here\n")


def test_the_innermost_condition_comes_first(above: Look) -> None:
    source = (
        "if rank < 4:\n    for step in range(9):\n        if step == 3 and local_rank == 0:\n"
        "            barrier()  # here\n"
    )
    assert above(source) == ["3: if step == 3 and local_rank == 0:", "1: if rank < 4:"]


def test_the_condition_itself_is_not_below_itself(above: Look) -> None:
    """All ranks come to the line that asks."""
    assert above("if all_agree() and rank == 0:  # here\n    pass\n") == []


def test_what_stands_beside_a_condition(above: Look) -> None:
    assert above("if rank == 0:\n    save()\nbarrier()  # here\n") == []
    assert above("if step == 0:\n    barrier()  # here\n") == []
    assert above("if ranking:\n    barrier()  # here\n") == []
    assert above("if franklin or params:\n    barrier()  # here\n") == []


def test_nested_functions(above: Look) -> None:
    source = (
        "def outer(rank):\n    if rank == 0:\n        def inner():\n"
        "            barrier()  # here\n        inner()\n"
    )
    assert above(source) == ["2: if rank == 0:"]


def test_the_frames_that_called(tmp_path: Path) -> None:
    """A condition in a caller counts as one in the innermost function does; libraries do not."""
    outer, inner = tmp_path / "train.py", tmp_path / "saving.py"
    outer.write_text("if rank == 0:\n    save()\n")
    inner.write_text("def save():\n    if not is_master:\n        return\n    barrier()\n")
    library = Frame(file="/x/site-packages/torch/distributed/c10d.py", line=1, function="barrier")
    frames = [
        library,
        Frame(file=str(inner), line=4, function="save"),
        Frame(file=str(outer), line=2, function="<module>"),
    ]
    assert branches.above(frames) == (f"{outer}:1: if rank == 0:",)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("if rank ==\n    barrier(\n")
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\x00\xff\x00")
    for file in (broken, binary, tmp_path / "absent.py", tmp_path):
        assert branches.above([Frame(file=str(file), line=2, function="main")]) == ()
    assert branches.above([]) == ()


def test_an_edited_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    frame = Frame(file=str(file), line=2, function="main")
    file.write_text("if step == 0:\n    barrier()\n")
    assert branches.above([frame]) == ()
    file.write_text("if rank == 0:\n    barrier()\n")
    later = os.stat(file).st_mtime_ns + 1_000_000
    os.utime(file, ns=(later, later))
    assert branches.above([frame]) == (f"{file}:1: if rank == 0:",)
