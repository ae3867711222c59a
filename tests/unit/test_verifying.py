"""What the controller does with digests: asks for names, certifies checkpoints, sets them aside."""

import base64
import dataclasses
from array import array
from collections.abc import Mapping

from harness import events as e
from harness import orders as o
from harness.sightings import DigestPart, DigestRow, TensorDigests, TensorShape, TensorSums
from harness.state import files
from harness.topology import runs_of
from tests.replay.world import World

PART = DigestPart(
    part=1, site="parameters", how="ddp", name="a … b", tensors=2, ranks=(0, 1, 2, 3),
    members=runs_of(range(4)),
)  # fmt: skip


def started() -> World:
    world = World(nnodes=2, nproc=2).start()
    world.say(e.DigestsRead(node_rank=0, rows=(), parts=(PART,)), 0)
    return world


def look(world: World, step: int, values: Mapping[int, int]) -> None:
    """Both nodes tell their ranks' digests after `step`."""
    world.step(step)
    for node in (0, 1):
        rows = tuple(
            DigestRow(
                part=1, count=2 * step + 1, value=values[rank], ranks=(rank,), step=step,
                at_ns=world.now_ns, progress=step,
            )
            for rank in (2 * node, 2 * node + 1)
        )  # fmt: skip
        world.say(e.DigestsRead(node_rank=node, rows=rows), node)


def alike(step: int) -> dict[int, int]:
    return dict.fromkeys(range(4), step)


def given(world: World, kind: type[o.Order]) -> list[tuple[int, o.Order]]:
    events = [r.event for r in world.records if isinstance(r.event, e.OrderGiven)]
    return [(event.node_rank, event.order) for event in events if isinstance(event.order, kind)]


def test_a_checkpoint_is_certified_once_its_step_was_seen_to_be_equal() -> None:
    world = started()
    look(world, 1, alike(1))
    world.step(2)
    world.save(2)
    assert given(world, o.CertifyCheckpoint) == []
    look(world, 3, alike(3))
    order = o.CertifyCheckpoint(step=2, path="ck/2", by="replica digests")
    assert given(world, o.CertifyCheckpoint) == [(0, order)]


def corrupted() -> World:
    """Equal up to step 4, rank 3 other since step 5; checkpoints of steps 4, which was certified,
    and 6."""
    world = started()
    for step in range(1, 5):
        look(world, step, alike(step))
    world.save(3)
    world.say(e.CheckpointCertified(node_rank=0, step=3, path="ck/3"), 0)
    look(world, 5, {0: 5, 1: 5, 2: 5, 3: 99})
    world.save(5)
    look(world, 6, {0: 6, 1: 6, 2: 6, 3: 98})
    return world


def test_nothing_is_certified_or_judged_until_the_tensors_are_known() -> None:
    world = corrupted()
    ask = o.TellDigests(attempt=0, part=1, count=11)
    assert given(world, o.TellDigests) == [(0, ask), (1, ask)]
    assert [order.path for _, order in given(world, o.CertifyCheckpoint)] == ["ck/3"]
    assert world.state.incidents == []


def tell(world: World, node: int, values: Mapping[int, tuple[int, int]]) -> None:
    ranks = tuple(TensorDigests(ranks=(rank,), values=value) for rank, value in values.items())
    told = e.DigestsTold(node_rank=node, attempt=0, part=1, count=11, names=("a", "b"), ranks=ranks)
    world.say(told, node)


def tell_closely(world: World) -> None:
    """What the ranks say to the question where in the tensor it is: nothing."""
    sums = (TensorSums(ranks=(0,), why="its sums are not kept any more"),)
    close = e.LookedClosely(
        node_rank=0, attempt=0, part=1, suspect=11, name="b", count=11, sums=sums
    )
    world.say(close, 0)


def test_a_rollback_sets_aside_what_was_saved_since() -> None:
    world = corrupted()
    tell(world, 0, {0: (7, 8), 1: (7, 8)})
    tell(world, 1, {2: (7, 8), 3: (7, 9)})
    close = o.LookClosely(attempt=0, part=1, count=11, name="b", ranks=(0, 3))
    assert given(world, o.LookClosely) == [(0, close), (1, close)]
    assert world.state.incidents == []
    tell_closely(world)
    (incident,) = world.state.incidents
    verdict = incident.verdict
    assert (verdict.verdict, verdict.first_failing) == ("silent_data_corruption", (3,))
    assert verdict.innocent == (0, 1, 2)
    assert "parameter b " in verdict.cause
    assert incident.action == "rollback"
    assert "certified checkpoint of step 3" in incident.action_reason
    world.obey(o.StopWorkers, o.Notify)
    ((node, order),) = given(world, o.SetAside)
    assert (node, order.paths) == (0, ("ck/5",))
    moved = e.FilesSetAside(node_rank=0, attempt=0, moved=("ck/5.set-aside",))
    world.say(moved, 0)
    world.obey()
    assert len(world.state.attempts) == 2
    point = world.state.newest_restore_point
    assert point is not None
    assert point.step == 3


def test_what_the_run_would_go_back_to_is_held_while_something_is_suspected() -> None:
    world = corrupted()
    assert given(world, o.HoldCheckpoint) == [(0, o.HoldCheckpoint(attempt=0, path="ck/3"))]


def saved_by_script(deleted: tuple[str, ...], *, over: bool = False) -> list[str]:
    """What is said of files of the script's own: two are from before the corruption and one, which
    takes the place of the newer of them if `over`, from after it."""
    world = started()
    for step in range(1, 4):
        look(world, step, alike(step))
        if step < 3:
            world.say(e.CheckpointFile(rank=2, what="saved", path=f"ck/{step}.pt.tmp"), 1)
    path = "ck/2.pt.tmp" if over else "ck/3.pt.tmp"
    look(world, 4, {**alike(4), 3: 99})
    world.say(e.CheckpointFile(rank=2, what="saved", path=path), 1)
    look(world, 5, {**alike(5), 3: 98})
    for node, ranks in ((0, (0, 1)), (1, (2, 3))):
        told = tuple(TensorDigests(ranks=(r,), values=(7, 8 + (r == 3))) for r in ranks)
        count = world.state.attempts[0].replicas.suspicions[0].at.count
        world.say(
            e.DigestsTold(
                node_rank=node, attempt=0, part=1, count=count, names=("a", "b"), ranks=told
            ),
            node,
        )
    sums = (TensorSums(ranks=(0,), why="its sums are not kept any more"),)
    world.say(
        e.LookedClosely(
            node_rank=0, attempt=0, part=1, suspect=count, name="b", count=count, sums=sums
        ),
        0,
    )
    world.obey(o.StopWorkers, o.Notify)
    ((node, order),) = given(world, o.SetAside)
    assert isinstance(order, o.SetAside)
    assert (node, order.paths) == (1, (path,))
    assert order.good == tuple(p for p in ("ck/2.pt.tmp", "ck/1.pt.tmp") if p != path)
    moved = (f"{path.removesuffix('.tmp')}.set-aside",)
    world.say(e.FilesSetAside(node_rank=1, attempt=0, moved=moved, gone=deleted), 1)
    world.obey()
    assert len(world.state.attempts) == 2
    return [text for text in world.state.notices if "script has" in text]


def test_what_the_script_has_deleted_before_a_rollback_is_said() -> None:
    assert saved_by_script(()) == []
    advice = "have it keep more of them, or save with harness.Checkpointer"
    head = "harness: incident 1: the script has deleted 2.pt meanwhile, its last checkpoint"
    assert saved_by_script(("ck/2.pt.tmp",)) == [
        f"{head} from before the corruption; this attempt has 1.pt: {advice}"
    ]
    assert saved_by_script(("ck/2.pt.tmp", "ck/1.pt.tmp")) == [
        f"{head} from before the corruption; none of this run's is left: {advice}"
    ]
    assert saved_by_script(("ck/1.pt.tmp",), over=True) == [
        "harness: incident 1: the script has written over 2.pt since; what it held was from before"
        f" the corruption; none of this run's is left: {advice}"
    ]


def test_what_a_later_attempt_saves_under_the_same_name_counts_from_then() -> None:
    """Or a rollback would take what was saved after the corruption for what was there before."""
    world = World(nproc=2).start()
    world.save(5)
    state = world.state
    first_ns = state.checkpoints[5].whole_ns
    state.attempts.append(dataclasses.replace(state.attempts[0], index=1))
    stamp = dataclasses.replace(world.records[-1].stamp, attempt=1)
    state.last_ns = first_ns + 10**9
    whole = []
    for rank in (0, 1, 1):
        files.saved(state, stamp, e.CheckpointSaved(rank=rank, step=5, path="ck/5", seconds=0.1))
        whole.append(state.checkpoints[5].whole_ns)
        state.last_ns += 10**9
    assert whole == [first_ns, first_ns + 2 * 10**9, first_ns + 2 * 10**9]
    assert state.checkpoints[5].attempt == 1


def test_a_node_that_does_not_answer_is_not_waited_for() -> None:
    world = corrupted()
    for step in range(7, 40):
        world.step(step)
    (incident,) = world.state.incidents
    assert incident.verdict.first_failing == (3,)


def test_a_controller_that_comes_back_comes_to_the_same() -> None:
    world = corrupted()
    again = World.resumed(world, len(world.records))
    tell(again, 0, {0: (7, 8), 1: (7, 8)})
    tell(again, 1, {2: (7, 8), 3: (7, 9)})
    tell_closely(again)
    assert again.state.incidents[0].verdict.first_failing == (3,)


def test_words_are_asked_for_where_the_rows_differ() -> None:
    world = corrupted()
    tell(world, 0, {0: (7, 8), 1: (7, 8)})
    tell(world, 1, {2: (7, 8), 3: (7, 9)})
    rows = {rank: base64.b64encode(array("q", [1, 2, rank]).tobytes()).decode() for rank in (0, 3)}
    shape = TensorShape(dtype="float32", item=4, lengths=(12000,), strides=(1,))
    for node, rank in ((0, 0), (1, 3)):
        sums = (TensorSums(ranks=(rank,), rows=rows[rank]),)
        close = e.LookedClosely(
            node_rank=node, attempt=0, part=1, suspect=11, name="b", count=11, sums=sums,
            shape=shape,
        )  # fmt: skip
        world.say(close, node)
    asked = [order for _, order in given(world, o.LookClosely)]
    assert [order.buckets for order in asked] == [(), (), (2,), (2,)]  # type: ignore[attr-defined]
    assert world.state.incidents == []
    for step in range(7, 120):
        world.step(step)
    (incident,) = world.state.incidents  # nobody answers: what is known is said
    assert "; somewhere from [8156] to [11999]" in incident.verdict.cause
