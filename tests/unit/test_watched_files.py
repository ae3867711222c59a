"""Watched checkpoint files: what is seen to be wrong with real ones, and what follows from it."""

import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import events as e
from harness import orders as o
from harness.agent import filecheck
from harness.agent.filesets import Flaw
from harness.agent.openfiles import open_for_writing
from harness.agent.savedfiles import SavedFiles
from harness.checkpointnames import (
    is_pointer,
    is_unfinished,
    part_of,
    step_of,
    unit_of,
)
from tests.replay.world import World


class Shelf:
    """A folder and what its watch says, on a clock of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 100.0
        self.flaws: list[Flaw] = []
        self.mended: list[str] = []
        self.files = SavedFiles(str(root), self.flaws.append, self.mended.append)
        self.reading = self.files.readings()
        self.files.begin(0, 2)

    def save(self, name: str, step: int | None = None, *, rests: bool = True) -> Path:
        """As a rank would: a whole file, closed."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        said = {"step": step} if step is not None else {}
        torch.save({**said, "w": torch.arange(300)}, path)
        self.closed(path, rests=rests)
        return path

    def closed(self, path: Path, *, rests: bool = True) -> None:
        self.files.closed(str(path), self.now)
        if rests:
            self.rest()

    def rest(self) -> None:
        """Until every file has been looked at and read."""
        for _ in range(3):
            self.now += 3.0
            self.files.look(self.now)
            while next(self.reading):
                pass

    @property
    def kinds(self) -> list[tuple[str, str]]:
        return [(flaw.kind, os.path.basename(flaw.path)) for flaw in self.flaws]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "part"),
    [
        ("step_20.pt", 20, None),
        ("epoch=3-step=1000.ckpt", 1000, None),
        ("shard1_step10.pt", 10, (1, 0)),
        ("ckpt10_rank2.pt", 10, (2, 0)),
        ("mp_rank_00_model_states.pt", None, (0, 0)),
        ("model-00002-of-00004.safetensors", None, (2, 4)),
        ("model_1000.pt", 1000, None),
        ("__3_0.distcp", None, (3, 0)),
        ("model_final.pt", None, None),
    ],
)
def test_what_names_say(name: str, step: int | None, part: tuple[int, int] | None) -> None:
    assert (step_of(name), part_of(name)) == (step, part)


def test_names_that_do_not_count_and_names_that_point() -> None:
    for name in ("step_20.pt.tmp", "tmp_step_20.pt", ".hidden.pt", "x.partial", "a.pt.set-aside2"):
        assert is_unfinished(name), name
    for name in ("template.pt", "step_20.pt", "parts_1.pt"):
        assert not is_unfinished(name), name
    for name in ("latest", "latest.txt", "last.ckpt", "latest_checkpointed_iteration.txt"):
        assert is_pointer(name), name
    assert not is_pointer("latest_model_of_bob.pt")


def test_what_comes_and_goes_together() -> None:
    assert unit_of("/c", "/c/checkpoint-5/model.pt") == ("/c/checkpoint-5", 5)
    assert unit_of("/c", "/c/checkpoint-5/global_step5/mp_rank_0.pt") == ("/c/checkpoint-5", 5)
    assert unit_of("/c", "/c/epoch_3/step_10.pt") == ("/c/epoch_3/step_10.pt", 10)
    assert unit_of("/c", "/c/model.pt") == ("/c/model.pt", None)


# --- one file ------------------------------------------------------------------------------------


def safetensors(path: Path) -> None:
    """By the definition of the format."""
    header = b'{"w":{"dtype":"F32","shape":[100],"data_offsets":[0,400]}}'
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(400))


def several_archives(path: Path) -> None:
    with path.open("wb") as file:
        for count in (100, 5000, 3):
            torch.save(torch.ones(count), file)


FORMATS: dict[str, Any] = {
    "archive.pt": lambda p: torch.save({"step": 7, "w": torch.ones(4000)}, p),
    "older.pt": lambda p: torch.save(
        {"step": 7, "w": torch.ones(4000)}, p, _use_new_zipfile_serialization=False
    ),
    "several.distcp": several_archives,
    "tensors.safetensors": safetensors,
    "plain.pkl": lambda p: p.write_bytes(pickle.dumps(OrderedDict(w=list(range(1000))))),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_ends_too_soon(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FORMATS[name](path)
    whole = path.read_bytes()
    assert filecheck.outline(str(path)).problem == ""
    for share in (0.0, 0.3, 0.7, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert filecheck.outline(str(path)).torn, share


def test_what_a_file_says_of_its_step(tmp_path: Path) -> None:
    for name in ("archive.pt", "older.pt"):
        FORMATS[name](tmp_path / name)
        assert filecheck.outline(str(tmp_path / name)).step == ("step", 7)


def test_nothing_of_a_file_is_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "sprung"),)

    for legacy in (False, True):
        path = tmp_path / f"trap{legacy}.pt"
        torch.save({"trap": Trap(), "step": 3}, path, _use_new_zipfile_serialization=not legacy)
        assert filecheck.outline(str(path)).step == ("step", 3)
    assert not (tmp_path / "sprung").exists()


def test_flipped_bytes_anywhere_in_an_archive(tmp_path: Path) -> None:
    for name in ("archive.pt", "several.distcp"):
        path = tmp_path / name
        FORMATS[name](path)
        known = filecheck.outline(str(path))
        assert read(path, known) == ""
        for span in known.spans:
            if span.end == span.begin:
                continue
            with path.open("r+b") as file:
                file.seek(span.begin)
                byte = file.read(1)
                file.seek(span.begin)
                file.write(bytes([byte[0] ^ 4]))
            assert read(path, known).startswith("the checksum of ")
            assert filecheck.flaw(str(path)) == read(path, known)
            assert filecheck.flaw(str(path), most=10) == ""
            with path.open("r+b") as file:
                file.seek(span.begin)
                file.write(byte)
    deflated = tmp_path / "small.npz"
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"abc" * 1_000_000)
    assert read(deflated, filecheck.outline(str(deflated))) == ""


def read(path: Path, known: filecheck.Outline) -> str:
    reading = filecheck.read(str(path), known)
    try:
        while True:
            next(reading)
    except StopIteration as done:
        return str(done.value[0])


def test_checksums_that_torch_was_told_to_leave_out(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(100)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    known = filecheck.outline(str(tmp_path / "a.pt"))
    assert known.problem == ""
    assert read(tmp_path / "a.pt", known) == ""


def test_a_writer_that_has_not_finished(shelf: Shelf) -> None:
    path = shelf.save("step_5.pt", 5)
    whole = path.read_bytes()
    with path.open("wb") as file:
        file.write(whole[:500])
        file.flush()
        code = f"open({str(path)!r}, 'r+b'); print(flush=True); input()"
        process = subprocess.Popen(
            [sys.executable, "-c", f"f = {code}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
    assert open_for_writing(str(path))
    shelf.closed(path)
    assert shelf.flaws == []
    process.communicate(b"\n")
    assert not open_for_writing(str(path))
    shelf.closed(path)
    assert shelf.kinds == [("torn", "step_5.pt")]
    path.write_bytes(whole)
    shelf.closed(path)
    assert shelf.mended == [str(path)]


def test_whole_files_say_nothing(shelf: Shelf) -> None:
    for step in (5, 10):
        for rank in (0, 1):
            shelf.save(f"shard{rank}_step{step}.pt", step)
        (shelf.root / "latest").write_text(f"step{step}")
        shelf.closed(shelf.root / "latest")
    shelf.save("best.pt", 5)
    shelf.save("last.pt", 10)
    (shelf.root / "lock").touch()
    shelf.closed(shelf.root / "lock")
    shelf.files.settle(shelf.now)
    assert shelf.flaws == []


def test_flipped_bytes_of_what_was_written(shelf: Shelf) -> None:
    path = shelf.save("step_5.pt", 5)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff\x00\xff\x00")
    shelf.closed(path)
    assert shelf.kinds == [("damaged", "step_5.pt")]
    assert shelf.flaws[0].aside == (str(path),)


def test_an_older_checkpoint_gets_other_bytes(shelf: Shelf) -> None:
    for step in (5, 10):
        shelf.save(f"step_{step}.pt", step)
    shelf.save("last.pt", 5)
    shelf.save("last.pt", 10)
    shelf.save("step_10.pt", 11)  # the newest may be saved again
    assert shelf.flaws == []
    shelf.save("step_5.pt", 4)
    assert shelf.kinds == [("rewritten", "step_5.pt")]
    assert shelf.flaws[0].aside == ()


def test_an_attempt_saves_again_what_the_one_before_saved(shelf: Shelf) -> None:
    for step in (5, 10, 15):
        shelf.save(f"step_{step}.pt", step)
    shelf.files.begin(1, 2)
    for step in (10, 15):
        shelf.save(f"step_{step}.pt", step + 1)
    assert shelf.flaws == []


def test_each_rank_writes_a_file_of_its_own_over(shelf: Shelf) -> None:
    """Their numbers are no steps: none of them is older than another."""
    for step in (5, 10):
        for rank in (1, 0):
            shelf.save(f"net{rank}.pt", step)
    assert shelf.flaws == []


def test_an_empty_file_is_judged_only_where_its_name_says_whose_it_is(shelf: Shelf) -> None:
    for name in ("data1.bin", "model.bin"):
        (shelf.root / name).write_bytes(b"")
        shelf.closed(shelf.root / name)
    assert shelf.kinds == [("torn", "model.bin")]


# --- sets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shard{r}_step{s}.pt", "step{s}/rank{r}.pt", "{s}/shard_{r}.pt"])
def test_a_part_that_never_comes(shelf: Shelf, name: str) -> None:
    for rank in (0, 1):
        shelf.save(name.format(r=rank, s=5), 5)
    lonely = shelf.save(name.format(r=0, s=10), 10)
    assert shelf.flaws == []  # it may be on its way
    shelf.files.settle(shelf.now)
    ((kind, _),) = shelf.kinds
    assert kind == "incomplete"
    assert "part 1" in shelf.flaws[0].why
    aside = lonely if "/" not in name else lonely.parent
    assert shelf.flaws[0].aside == (str(aside),)
    shelf.save(name.format(r=1, s=10), 10)  # somebody else brought it
    shelf.files.settle(shelf.now)
    assert len(shelf.mended) == 1


def test_a_part_that_was_left_out(shelf: Shelf) -> None:
    for step, ranks in ((5, (0, 1)), (10, (0,)), (15, (1, 0)), (20, (0,))):
        for rank in ranks:
            shelf.save(f"shard{rank}_step{step}.pt", step)
    assert [(f.kind, f.step) for f in shelf.flaws] == [("incomplete", 10)]


def test_fewer_ranks_save_fewer_parts(shelf: Shelf) -> None:
    for rank in (0, 1):
        shelf.save(f"shard{rank}_step5.pt", 5)
    shelf.files.begin(1, 1)
    shelf.save("shard0_step10.pt", 10)
    shelf.files.settle(shelf.now)
    assert shelf.flaws == []


def test_parts_that_say_their_number(shelf: Shelf) -> None:
    for part in (1, 2, 4):
        shelf.save(f"checkpoint-5/model-{part:05d}-of-00004.bin")
    shelf.files.settle(shelf.now)
    assert "not part 3 of 4" in shelf.flaws[0].why


def test_parts_of_different_steps_under_one_name(shelf: Shelf) -> None:
    for step in (5, 10):
        for rank in (0, 1):
            shelf.save(f"shard{rank}.pt", step)
    shelf.save("shard0.pt", 15)
    assert shelf.flaws == []
    shelf.save("shard0.pt", 20)
    assert shelf.kinds == [("mixed", "shard1.pt")]
    assert shelf.flaws[0].why.endswith("shard0.pt of 20, shard1.pt of 10")


def test_a_crash_between_two_saves_of_one_name(shelf: Shelf) -> None:
    for rank, step in ((0, 5), (1, 5), (0, 10)):
        shelf.save(f"shard{rank}.pt", step)
    assert shelf.flaws == []
    shelf.files.settle(shelf.now)
    assert shelf.kinds == [("mixed", "shard1.pt")]


# --- pointers ------------------------------------------------------------------------------------


def test_a_pointer_that_is_moved_too_early(shelf: Shelf) -> None:
    shelf.save("step10/rank0.pt", 10)
    (shelf.root / "latest").write_text("step10")
    shelf.closed(shelf.root / "latest", rests=False)
    time.sleep(0.02)  # the clock of files ticks in hundredths of a second
    shelf.save("step10/rank1.pt", 10)
    assert shelf.kinds == [("early", "latest")]
    assert shelf.flaws[0].why == "latest was moved to step10 before rank1.pt of it was written"


def test_a_pointer_to_nothing(shelf: Shelf) -> None:
    shelf.save("iter_0000010/model.pt", 10)
    (shelf.root / "latest_checkpointed_iteration.txt").write_text("20")
    shelf.closed(shelf.root / "latest_checkpointed_iteration.txt")
    os.symlink("iter_0000010", shelf.root / "latest")
    shelf.closed(shelf.root / "latest")
    assert [f.why for f in shelf.flaws] == [
        "latest_checkpointed_iteration.txt points at 20, which is not there"
    ]


# --- what was there before -----------------------------------------------------------------------


def test_what_an_earlier_run_left(shelf: Shelf) -> None:
    for rank, step in ((0, 5), (1, 5), (0, 10)):
        torch.save({"step": step}, shelf.root / f"shard{rank}_step{step}.pt")
    (shelf.root / "other.pt").write_bytes((shelf.root / "shard0_step5.pt").read_bytes()[:100])
    paths = [str(path) for path in shelf.root.iterdir()]
    for path in paths:
        os.utime(path, (1000, 1000))
    shelf.files.found(paths, shelf.now, time.time(), time.time())
    assert sorted(shelf.kinds) == [("incomplete", "shard0_step10.pt"), ("torn", "other.pt")]


# --- what follows --------------------------------------------------------------------------------


def flaw(world: World, kind: str, name: str, *aside: str) -> None:
    found = e.CheckpointFlaw(
        node_rank=0, kind=kind, path=f"/ck/{name}", why=f"{name} is {kind}", aside=aside
    )
    world.say(found, 0)


def orders_to_set_aside(world: World) -> Iterator[tuple[str, ...]]:
    for of in world.state.orders.values():
        yield from (order.paths for order in of if isinstance(order, o.SetAside))


def test_what_was_refused_at_the_load_is_told_and_stays_where_it_is() -> None:
    world = World(nproc=2).start()
    world.step(3)
    flaw(world, "refused", "step-000010")
    (incident,) = world.state.incidents
    assert (incident.verdict.verdict, incident.action) == ("checkpoint_corrupt", "report")
    assert "is not any more" in incident.verdict.reason
    assert "goes on from an older one" in incident.action_reason
    assert list(orders_to_set_aside(world)) == []


def test_each_flaw_is_told_once_and_changes_nothing() -> None:
    world = World(nproc=2).start()
    world.step(3)
    for name in ("step_5.pt", "step_10.pt"):
        flaw(world, "torn", name, f"/ck/{name}")
        flaw(world, "torn", name, f"/ck/{name}")
    flaw(world, "early", "latest")
    told = [(i.verdict.verdict, i.verdict.cause, i.action) for i in world.state.incidents]
    assert told == [
        ("checkpoint_corrupt", "step_5.pt is torn", "report"),
        ("checkpoint_corrupt", "step_10.pt is torn", "report"),
        ("checkpoint_incomplete", "latest is early", "report"),
    ]
    assert world.state.stage == "running"


def test_the_writer_is_named_where_it_is_known() -> None:
    world = World(nproc=3).start()
    said = e.CheckpointFile(rank=1, what="saved", path="/ck/step_5.pt", step=5)
    world.say(said, 0)
    flaw(world, "damaged", "step_5.pt")
    flaw(world, "damaged", "step_9.pt")
    ranks = [incident.verdict.first_failing for incident in world.state.incidents]
    assert ranks == [(1,), (0, 1, 2)]


def test_a_crash_afterwards_keeps_the_next_attempt_from_it() -> None:
    world = World(nproc=2).start()
    world.step(3)
    flaw(world, "torn", "step_5.pt", "/ck/step_5.pt", "/ck/optim_5.pt")
    flaw(world, "torn", "step_6.pt", "/ck/step_6.pt")
    flaw(world, "mended", "step_6.pt")
    world.judged_before = len(world.state.incidents)
    world.exit(1, signal=9)
    incident = world.judged()
    assert (incident.verdict.verdict, incident.action) == ("killed_by_signal", "rollback")
    world.obey()
    assert list(orders_to_set_aside(world)) == [("/ck/step_5.pt", "/ck/optim_5.pt")]


def test_ranks_that_went_on_from_what_is_incomplete_go_back() -> None:
    for known, action in ((True, "rollback"), (False, "stop")):
        world = World(nproc=2).start()
        if known:
            flaw(world, "incomplete", "s0_step10.pt", "/ck/s0_step10.pt")
            world.judged_before = len(world.state.incidents)
        for rank, step in ((0, 10), (1, 5)):
            name = f"/ck/s{rank}_step{step}.pt"
            world.say(e.CheckpointFile(rank=rank, what="loaded", path=name, step=step), 0)
        assert world.incident.verdict.verdict == "checkpoint_step_mismatch"
        assert world.incident.action == action
