"""Evidence of a node as one line: it comes back as it was, and is judged as if it had been told of
rank by rank."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode as json_of

from harness import codec, journal, packedgroups
from harness import events as e
from harness.collectives import Collective, GroupCreation, PointToPoint, Terms
from harness.columns import Creations, Exchanged, Flows, Recorded
from harness.diagnosis.waits.live import rank_wait
from harness.recovery import watching
from harness.sightings import Flow, Frame, Traffic
from tests.replay.world import START_NS, WHERE, World, collective

RECORDINGS = sorted((Path(__file__).parents[1] / "replay" / "recordings").rglob("events.jsonl"))
STAMP = e.Stamp(run="t", attempt=0, source="agent:0", seq=0, wall_ns=1, mono_ns=1)


def there_and_back(*taken: e.EvidenceTaken) -> tuple[e.EvidenceTaken, ...]:
    event = e.EvidenceOfNode(node_rank=0, taken=taken)
    back = codec.decode(codec.encode(e.Record(stamp=STAMP, event=event))).event
    assert isinstance(back, e.EvidenceOfNode)
    assert back == event
    return back.taken


def recorded() -> Iterator[tuple[e.EvidenceTaken, ...]]:
    """All that real agents have seen of their ranks at one look."""
    for path in RECORDINGS:
        looks: dict[tuple[str, int], list[e.EvidenceTaken]] = {}
        for line in path.read_bytes().splitlines():
            if b'"EvidenceTaken"' in line:
                record = codec.decode(line)
                assert isinstance(record.event, e.EvidenceTaken)
                key = (record.stamp.source, record.event.collection)
                looks.setdefault(key, []).append(record.event)
        yield from map(tuple, looks.values())


def test_what_real_agents_saw_is_judged_alike() -> None:
    looks = list(recorded())
    assert len(looks) > 50
    for taken in looks:
        for plain, packed in zip(taken, there_and_back(*taken), strict=True):
            assert isinstance(packed.collectives, Recorded) == bool(plain.collectives)
            assert isinstance(packed.groups, Creations) == bool(plain.groups)
            assert isinstance(packed.p2p, Exchanged) == bool(plain.p2p)
            assert rank_wait(packed) == rank_wait(plain)


def entry(at: int, **more: Any) -> Collective:
    return replace(collective(at), **more)


@pytest.mark.parametrize(
    "entries",
    [
        (entry(3), entry(1), entry(2, retired=False)),
        (entry(0, pg="1", pg_desc="tp"), entry(1, pg="1", pg_desc="dp"), entry(2, pg="1")),
        (entry(0, terms=Terms(root=1)), entry(1, site="a.py:3:f"), entry(9, retired=False)),
        (entry(0, created_ns=5), entry(1, created_ns=3)),
        (entry(0, created_ns=2**63 - 1), entry(1, created_ns=-(2**63))),
    ],
)
def test_records_of_every_shape_come_back(entries: tuple[Collective, ...]) -> None:
    plain = e.EvidenceTaken(collection=0, rank=0, process=None, collectives=entries)
    (packed,) = there_and_back(plain)
    assert rank_wait(packed) == rank_wait(plain)
    assert list(packed.collectives) == list(entries)
    assert (packed.collectives[-1], packed.collectives[:2]) == (entries[-1], entries[:2])
    assert hash(packed) == hash(plain)


def made(pg: str, *ranks: int, **more: Any) -> GroupCreation:
    began = START_NS + 7 * len(pg)
    group = GroupCreation(
        pg=pg, pg_desc="tp", ranks=ranks, member=True, begun_ns=began, ended_ns=began + 5
    )
    return replace(group, **more)


def sent(peer: int, **more: Any) -> PointToPoint:
    message = PointToPoint(
        direction="send", peer=peer, pg="3", pg_desc="pp", tag=0, number=1, sizes=(4, 8),
        dtype="float32", state="done", begun_ns=START_NS, ended_ns=START_NS + 9,
    )  # fmt: skip
    return replace(message, **more)


@pytest.mark.parametrize(
    "groups",
    [
        (made("0", *range(4096), place=7), made("1", 3, 2, 9, 9, 1), made("2"), made("3", 5)),
        (made("0", *range(0, 64, 8), failed=True), made("1", *range(63, -1, -9), member=False)),
        (made("0", 1, 2, ended_ns=0), made("1", 0, 3, begun_ns=1, ended_ns=0)),
        (made("0", 1, 2, begun_ns=2**63 - 1, ended_ns=-(2**63)),),
        (made("0", -1, 2),),
        (made("0", 1 << 20),),
        (made("0", 2**62, 2**63 - 1),),
    ],
)
def test_groups_of_every_shape_come_back(groups: tuple[GroupCreation, ...]) -> None:
    plain = e.EvidenceTaken(collection=0, rank=0, process=None, groups=groups)
    packed, other = there_and_back(plain, replace(plain, rank=1))
    assert rank_wait(packed) == rank_wait(plain)
    assert (list(packed.groups), other.groups) == (list(groups), groups)
    assert hash(packed) == hash(plain)


@pytest.mark.parametrize(
    "messages",
    [
        (sent(4), sent(4, direction="recv", number=2, state="waiting", ended_ns=0)),
        (sent(-1, pg="", tag=3), sent(0, sizes=(), begun_ns=5), sent(1, pg="1", pg_desc="tp")),
        (sent(2**63 - 1, begun_ns=-(2**63)), sent(-(2**63))),
    ],
)
def test_messages_of_every_shape_come_back(messages: tuple[PointToPoint, ...]) -> None:
    plain = e.EvidenceTaken(collection=0, rank=2, process=None, p2p=messages)
    packed, other = there_and_back(plain, replace(plain, rank=1))
    assert rank_wait(packed) == rank_wait(plain)
    assert (list(packed.p2p), other.p2p) == (list(messages), messages)
    assert hash(packed) == hash(plain)


def test_traffic_comes_back() -> None:
    flows = (
        Flow(local="10.0.0.1", remote="10.0.0.1", peers=(0, 2), connections=3, total_bytes=2**62),
        Flow(local="10.0.0.1", remote="::1", sent_bytes=1, received_bytes=2, pending_bytes=3,
             tries=4, unanswered=True),
    )  # fmt: skip
    traffic = Traffic(seconds=0.4, flows=flows)
    plain = e.EvidenceTaken(collection=0, rank=1, process=None, traffic=traffic)
    packed, other = there_and_back(plain, replace(plain, traffic=Traffic(seconds=0.1)))
    assert packed.traffic is not None
    assert isinstance(packed.traffic.flows, Flows)
    assert (list(packed.traffic.flows), hash(packed)) == (list(flows), hash(plain))
    assert other.traffic == Traffic(seconds=0.1)


def test_lines_that_all_ranks_of_a_node_print_are_told_once() -> None:
    warning = "W0101 a warning of a library that every rank prints into its log, word for word"
    one = e.EvidenceTaken(collection=0, rank=0, process=None, last_lines=(warning,) * 20)
    taken = (one, replace(one, rank=1, last_lines=(warning, "step 3", warning)))
    event = e.EvidenceOfNode(node_rank=0, taken=taken)
    assert codec.encode(e.Record(stamp=STAMP, event=event)).count(warning.encode()) == 1
    there_and_back(*taken)


def test_a_world_of_thousands_is_told_once_and_held_once() -> None:
    world = tuple(range(20_000))

    def taken(rank: int) -> e.EvidenceTaken:
        own = made(str(rank // 8 + 1), *range(rank & ~7, (rank & ~7) + 8), place=rank % 8)
        both = made("", *world, pg_desc="init_process_group"), made("0", *world, place=rank)
        return e.EvidenceTaken(collection=0, rank=rank, process=None, groups=(*both, own))

    nodes = [
        e.EvidenceOfNode(node_rank=node, taken=tuple(map(taken, range(8 * node, 8 * node + 8))))
        for node in range(2)
    ]
    lines = [codec.encode(e.Record(stamp=STAMP, event=event)) for event in nodes]
    assert max(map(len, lines)) < 8 * 1000
    seen = [codec.decode(line).event for line in lines]
    held = {
        id(group.ranks)
        for node in seen
        if isinstance(node, e.EvidenceOfNode)
        for one in node.taken
        for group in one.groups[:2]
    }
    assert len(held) == 1
    assert seen == nodes


def test_what_ranks_have_in_common_is_told_once() -> None:
    entries = tuple(collective(at) for at in range(64))
    one = e.EvidenceTaken(collection=0, rank=0, process=None, collectives=entries)
    both = (one, replace(one, rank=1))
    together, *alone = (
        len(codec.encode(e.Record(stamp=STAMP, event=event)))
        for event in (e.EvidenceOfNode(node_rank=0, taken=both), *both)
    )
    assert together < sum(alone) / 4
    first, second = there_and_back(one, replace(one, rank=1))
    assert isinstance(first.collectives, Recorded)
    assert isinstance(second.collectives, Recorded)
    assert first.collectives.columns is second.collectives.columns


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ranks", 0, "record"), 1),
        (("ranks", 0, "stack"), 7),
        (("ranks", 0, "groups"), []),
        (("ranks", 0, "apart_ns"), [1]),
        (("ranks", 0, "apart_ns"), [2**62, 2**62]),
        (("records", 0, "seqs"), [1]),
        (("records", 0, "groups"), [0, 5]),
        (("records", 0, "kinds"), [0, -1]),
        (("records", 0), []),
        (("stacks",), [3]),
        (("stacks", 0, "files"), []),
        (("stacks", 0, "frames"), [[-1, 3, "train"]]),
        (("ranks", 0, "made"), [0]),
        (("ranks", 0, "made"), [0, 2]),
        (("ranks", 0, "made"), [-1, 1]),
        (("ranks", 0, "places"), [0]),
        (("ranks", 0, "made_apart_ns"), [1]),
        (("ranks", 0, "made_apart_ns"), [2**62, 2**62]),
        (("ranks", 0, "made_took_ns"), [2**63 - 1, 0]),
        (("groups", 0, "ranks"), [[0, 1, -1]]),
        (("groups", 0, "ranks"), [[0, 1, 0]]),
        (("groups", 0, "ranks"), [[0, -1, 2]]),
        (("groups", 0, "ranks"), [[0, 1 << 62, 3]]),
        (("groups", 0, "ranks"), [[0, 0, 1 << 62]]),
        (("groups", 0, "ranks"), [[0, 1, 1 << 20], [0, 1, 1]]),
        (("ranks", 0, "exchanged"), 1),
        (("ranks", 0, "message_groups"), []),
        (("ranks", 0, "message_apart_ns"), [1]),
        (("ranks", 0, "message_took_ns"), [2**63 - 1, 2]),
        (("ranks", 0, "taken", "rank"), 1 << 62),
        (("messages", 0, "numbers"), [1]),
        (("messages", 0, "ends"), [0, 1 << 62]),
        (("messages", 0, "kinds"), [0, 2]),
        (("ranks", 0, "taken", "traffic"), None),
        (("ranks", 0, "flows"), [0, 0, 1]),
        (("ranks", 0, "peers"), []),
        (("hosts",), []),
        (("ranks", 0, "lines"), [0, 1]),
        (("ranks", 0, "lines"), [-1]),
        (("lines",), []),
    ],
)
def test_a_line_that_does_not_fit_together_is_no_record(path: tuple[Any, ...], value: Any) -> None:
    taken = e.EvidenceTaken(
        collection=0, rank=0, process=None, collectives=(collective(0), collective(1)),
        groups=(made("0", 0, 1), made("1", 0)), p2p=(sent(1), sent(2)),
        traffic=Traffic(seconds=0.4, flows=(Flow(local="a", remote="b"),)), last_lines=("a",),
        frames=(Frame(file="a.py", line=3, function="f"),),
    )  # fmt: skip
    event = e.EvidenceOfNode(node_rank=0, taken=(taken,))
    line = json.loads(codec.encode(e.Record(stamp=STAMP, event=event)))
    at = line["event"]
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    if path == ("stacks",):
        line["event"]["ranks"][0]["stack"] = 0
    with pytest.raises(codec.CodecError):
        codec.decode(json.dumps(line).encode())


def test_a_look_together_has_the_same_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = []
    for thousands in (1024, 2):
        monkeypatch.setattr(watching, "_THOUSANDS", thousands)
        world = World(nproc=3)
        world.evidence = lambda rank: {
            "collectives": tuple(
                replace(collective(at), retired=at < 5, op="gloo:barrier" if rank == 1 and at == 5
                        else "gloo:all_reduce")
                for at in range(6)
            ),
            "advanced": False,
        }  # fmt: skip
        world.start()
        for step in range(1, 6):
            world.step(step)
        world.wake()
        world.obey()
        incident = world.judged()
        kinds = [type(record.event).__name__ for record in world.records]
        assert kinds.count("EvidenceOfNode") == (thousands == 2)
        verdicts.append((incident.verdict.verdict, incident.verdict.first_failing))
    assert verdicts[0] == verdicts[1]


def test_more_members_than_memory_has_room_for_are_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def line(*groups: GroupCreation) -> bytes:
        taken = e.EvidenceTaken(collection=0, rank=0, process=None, groups=groups)
        event = e.EvidenceOfNode(node_rank=0, taken=(taken,))
        return codec.encode(e.Record(stamp=STAMP, event=event))

    alike = line(made("10", *range(600)), made("11", *range(600)))
    other = line(made("12", *range(600)), made("13", *range(1, 601)))
    monkeypatch.setattr(packedgroups, "MOST_MEMBERS", 1000)
    for _ in range(3):
        codec.decode(alike)
        with pytest.raises(codec.CodecError):
            codec.decode(other)


def test_evidence_of_a_node_as_it_was_told_before_groups_were_packed() -> None:
    """Frames alone as stacks, groups and messages of each rank in full."""
    frame = Frame(file="/home/u/train.py", line=3, function="train")
    taken = e.EvidenceTaken(
        collection=0, rank=0, process=None, frames=(frame,), collectives=(collective(0),),
        user_frame=WHERE, branches=("a.py:1: if rank:",), frames_by="py-spy",
        groups=(made("0", 0, 1),), p2p=(sent(1),),
    )  # fmt: skip
    event = e.EvidenceOfNode(node_rank=0, taken=(taken,))
    line = json.loads(codec.encode(e.Record(stamp=STAMP, event=event)))
    told = line["event"]
    rank = told["ranks"][0]
    old = {name: rank[name] for name in ("taken", "stack", "record", "groups", "apart_ns")}
    told["ranks"] = [{**old, "taken": {**json.loads(json_of(taken)), "frames": [],
                                       "collectives": []}}]  # fmt: skip
    told["stacks"] = [[json.loads(json_of(frame))]]
    del told["groups"], told["messages"]
    assert codec.decode(json.dumps(line).encode()).event == event


def test_a_journal_of_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    taken = e.EvidenceTaken(collection=0, rank=0, process=None, collectives=(collective(0),))
    lines = [
        codec.encode(e.Record(stamp=STAMP, event=event))
        for event in (taken, e.EvidenceOfNode(node_rank=0, taken=(replace(taken, rank=1),)))
    ]
    path.write_bytes(b'{"schema":1,"harness":"1","run":"t"}\n' + b"\n".join([*lines, b""]))
    old, new = (record.event for record in journal.read(path))
    assert old == taken
    assert isinstance(new, e.EvidenceOfNode)
    assert new.taken == (replace(taken, rank=1),)
