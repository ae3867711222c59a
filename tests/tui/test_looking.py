"""Screens keep less than what verdicts are made of: what they show is the same."""

import pytest

from harness import events as e
from harness.sightings import RankArrivals, Vitals
from harness.state import RunState, fold_all
from harness.tui.model import Model
from harness.tui.pages.collectives import groups_of
from harness.tui.view import build

MB = 1 << 20


def looking(scene) -> RunState:
    model = Model()
    for record in scene.records:
        model.apply(record)
    return model.state


@pytest.mark.parametrize(
    "name", ["gathering", "running", "crashed", "restarted", "finished", "failed"]
)
def test_whoever_only_looks_sees_what_the_controller_knows(scenes, name):
    scene = getattr(scenes, name)()
    now_ns = scene.now_ns + scenes.SECOND
    assert build(looking(scene), now_ns) == build(fold_all(scene.records), now_ns)


def test_a_suspected_stall_is_shown_since_when_it_is(scenes):
    """Also after the look: it passes when the last rank has moved on."""
    scene = scenes.running()
    ranks = [rank for rank in range(8) if rank != 3]
    for step in range(213, 223):
        scene.pulse(step, ranks)
    look = e.StallLooked(
        collection=0, why="rank 3 is waited for", again_ns=scene.now_ns, ranks=(3,), place="a.py:1"
    )
    scene.add(look)
    judged, looked = fold_all(scene.records), looking(scene)
    assert judged.attempt.stall is not None
    assert judged.attempt.stall.since_ns == looked.attempt.stall.since_ns
    assert build(looked, scene.now_ns) == build(judged, scene.now_ns)
    for _ in range(4):
        scene.pulse(224)
    judged, looked = fold_all(scene.records), looking(scene)
    assert judged.attempt.stall is None
    assert looked.attempt.stall is None


def test_groups_and_memory_are_those_of_the_newest_reports(scenes):
    scene = scenes.running()
    scene.add(
        e.GroupCreated(rank=0, pg="1", pg_desc="mesh_tp", ranks=(0, 1, 2, 3)), source="agent:0"
    )
    for first, last in ((0, 9), (9, 20)):
        seqs = {rank: tuple(range(first, last - (rank == 2))) for rank in (0, 1, 2)}
        ranks = tuple(
            RankArrivals(
                rank=rank, records=of, groups=(0,) * len(of), seqs=of,
                entered_us=tuple(range(len(of))),
            )
            for rank, of in seqs.items()
        )  # fmt: skip
        read = e.ArrivalsRead(
            node_rank=0, base_ns=scene.now_ns, groups=("1",), ops=("all_gather",), ranks=ranks
        )
        vitals = tuple(
            Vitals(rank=rank, fds=3, fd_limit=1024, memory_bytes=last * MB, step=212)
            for rank in range(8)
        )
        scene.add(read, source="agent:0")
        told = e.VitalsRead(node_rank=0, vitals=vitals, memory_available_bytes=1 << 30)
        scene.add(told, source="agent:0", after=1.0)
    state = looking(scene)
    (row,) = groups_of(state.attempt)
    assert (row.role, row.op) == ("mesh_tp", "all_gather")
    assert row.seqs == {0: 19, 1: 19, 2: 18, 3: -1}
    grown = state.attempt.growth.ranks
    assert [len(grown[rank].points) for rank in range(8)] == [1] * 8
    newest = fold_all(scene.records).attempt.growth.ranks
    assert all(grown[rank].points[-1] == newest[rank].points[-1] for rank in range(8))
