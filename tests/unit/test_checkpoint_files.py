"""Checkpoint files of the script's own: what is noted of them, and what follows."""

import os
from pathlib import Path

import pytest

from harness import events as e
from harness import orders as o
from harness.agent import torn
from tests.replay.world import World

CUT = (
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
)


def file(world: World, rank: int, what: str, name: str, **more: object) -> None:
    told = e.CheckpointFile(rank=rank, what=what, path=f"/ck/{name}", **more)  # type: ignore[arg-type]
    world.say(told, world.node_of(rank))


def given(world: World) -> list[o.SetAside]:
    orders = [order for of in world.state.orders.values() for order in of]
    return [order for order in orders if isinstance(order, o.SetAside)]


def obey_all(world: World) -> None:
    """Also the renaming, which the world of tests does not know."""
    while world.pending:
        node, order = world.pending.pop(0)
        world.do(node, order)
        if isinstance(order, o.SetAside):
            moved = tuple(path + order.suffix for path in order.paths)
            world.say(e.FilesSetAside(node_rank=node, attempt=order.attempt, moved=moved), node)


@pytest.mark.parametrize("said", [CUT, "OSError: [Errno 22] Invalid argument"])
def test_a_file_that_cannot_be_read_makes_way_for_the_one_before(said: str) -> None:
    world = World(nproc=2).start()
    kind, _, message = said.partition(": ")
    for rank in (0, 1):
        file(world, rank, "load_failed", "step_10.pt", error=said, older="/ck/step_5.pt", bytes=9)
        world.raises(rank, kind, message)
        world.exit(rank, 1)
    incident = world.judged()
    assert incident.verdict.verdict == "checkpoint_corrupt"
    assert incident.verdict.first_failing == (0, 1)
    assert incident.action == "rollback"
    obey_all(world)
    assert [order.paths for order in given(world)] == [("/ck/step_10.pt",)]
    assert len(world.state.attempts) == 2


def test_what_the_file_shows_decides_whatever_torch_says() -> None:
    """torch reports a lost end as an invalid argument."""
    world = World(nproc=2).start()
    torn = {"older": "/ck/step_5.pt", "flaw": "its archive has no directory at the end"}
    file(world, 1, "load_failed", "step_10.pt", error="OSError: Invalid argument", **torn)
    world.raises(1, "RuntimeError", "step_10.pt: no way to go on from it")
    world.exit(1, 1)
    incident = world.judged()
    assert incident.verdict.verdict == "checkpoint_corrupt"
    assert "no directory at the end" in incident.verdict.cause
    assert incident.action == "rollback"


def test_without_an_older_one_the_run_stops() -> None:
    world = World(nproc=2).start()
    file(world, 0, "load_failed", "model.pt", error=CUT)
    world.raises(0, "RuntimeError", CUT.partition(": ")[2])
    world.exit(0, 1)
    assert world.judged().action == "stop"


def test_an_error_of_another_kind_is_no_damage() -> None:
    world = World(nproc=2).start()
    said = "Attempting to deserialize object on a CUDA device"
    file(
        world, 0, "load_failed", "step_10.pt", error=f"RuntimeError: {said}", older="/ck/step_5.pt"
    )
    world.raises(0, "RuntimeError", said)
    world.exit(0, 1)
    assert world.judged().verdict.verdict == "exception"


def test_a_kill_amid_a_save_is_answered_by_a_rollback() -> None:
    world = World(nproc=2).start()
    world.step(9)
    world.exit(0, signal=9, torn=("/ck/step_10.pt",))
    incident = world.judged()
    assert (incident.verdict.verdict, incident.action) == ("killed_by_signal", "rollback")
    obey_all(world)
    assert given(world)[0].paths == ("/ck/step_10.pt",)


def test_who_was_stopped_amid_a_save_leaves_no_trap() -> None:
    """Rank 1 crashed; rank 0 was writing when it was told to stop."""
    world = World(nproc=2).start()
    world.step(9)
    world.raises(1, "ValueError", "bad")
    world.exit(1, 1)
    incident = world.judged()
    assert incident.action == "restart"
    world.pending = [it for it in world.pending if not isinstance(it[1], o.StopWorkers)]
    world.exit(0, signal=9, ordered=True, torn=("/ck/step_10.pt",))
    world.say(e.WorkersStopped(node_rank=0, attempt=0), 0)
    assert given(world)[0].paths == ("/ck/step_10.pt",)
    assert len(world.state.attempts) == 1
    obey_all(world)
    assert len(world.state.attempts) == 2


def test_bad_numbers_soon_after_a_load_point_at_the_file() -> None:
    for begun, action in ((5, "rollback"), (500, "restart")):
        world = World(nproc=2).start()
        file(world, 0, "loaded", "step_10.pt", step=10, older="/ck/step_5.pt")
        rank = world.state.attempts[-1].ranks[0]
        rank.collectives = begun
        world.raises(0, "RuntimeError", "loss is nan at step 12")
        world.exit(0, 1)
        incident = world.judged()
        assert (incident.verdict.verdict, incident.action) == ("nonfinite", action)


@pytest.mark.parametrize("text", ["loss is NaN", "grad norm is inf", "non-finite loss: -inf"])
def test_words_for_bad_numbers(text: str) -> None:
    world = World(nproc=1).start()
    world.raises(0, "ValueError", text)
    world.exit(0, 1)
    assert world.judged().verdict.verdict == "nonfinite"


@pytest.mark.parametrize("text", ["more info follows", "Banana is no fruit", "inference failed"])
def test_words_that_only_look_like_it(text: str) -> None:
    world = World(nproc=1).start()
    world.raises(0, "ValueError", text)
    world.exit(0, 1)
    assert world.judged().verdict.verdict == "exception"


def test_a_failed_save_is_told_once_and_changes_nothing() -> None:
    world = World(nproc=2).start()
    for name in ("a.pt", "b.pt"):
        file(world, 1, "save_failed", name, error="OSError: [Errno 28] No space left on device")
    (incident,) = world.state.incidents
    assert (incident.verdict.verdict, incident.action) == ("checkpoint_save_failed", "report")
    assert incident.verdict.first_failing == (1,)


def test_a_save_that_nobody_catches_ends_the_rank_and_is_named_for_it() -> None:
    world = World(nproc=2).start()
    file(world, 0, "save_failed", "step_5.pt", error="OSError: [Errno 28] No space left on device")
    world.raises(0, "OSError", "[Errno 28] No space left on device")
    world.exit(0, 1)
    incident = world.judged()
    assert incident.verdict.verdict == "checkpoint_save_failed"
    assert incident.verdict.first_failing == (0,)
    assert incident.action == "restart"


def test_ranks_that_load_different_steps() -> None:
    world = World(nproc=3).start()
    for rank, step in ((0, 10), (1, 5), (2, 10)):
        file(world, rank, "loaded", f"shard{rank}_step{step}.pt", step=step)
    (incident,) = world.state.incidents
    assert (incident.verdict.verdict, incident.action) == ("checkpoint_step_mismatch", "stop")
    assert incident.verdict.first_failing == (1,)


def test_torn_archives_are_told_from_whole_and_from_foreign_ones(tmp_path: Path) -> None:
    import zipfile

    whole = tmp_path / "whole.pt"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data", b"x" * 1000)
    cut = tmp_path / "cut.pt"
    cut.write_bytes(whole.read_bytes()[:500])
    empty = tmp_path / "empty.pt"
    empty.touch()
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(b"something else")
    paths = [str(path) for path in (whole, cut, empty, foreign, tmp_path / "gone.pt")]
    assert torn.among(dict.fromkeys(paths, False)) == (str(cut), str(empty))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    bad = tmp_path / "step_10.pt"
    bad.write_text("new")
    (tmp_path / "step_10.pt.set-aside").write_text("old")
    said: list[str] = []
    order = o.SetAside(attempt=0, paths=(str(bad), str(tmp_path / "gone.pt")), suffix=".set-aside")
    done = torn.carry_out(order, 0, said.append)
    assert (tmp_path / "step_10.pt.set-aside").read_text() == "old"
    assert (tmp_path / "step_10.pt.set-aside2").read_text() == "new"
    assert not os.path.exists(bad)
    assert (len(done.moved), done.failed, len(said)) == (1, (), 1)  # what is gone harms nobody
