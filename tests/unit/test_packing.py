"""Evidence of a node as one line: it comes back as it was, and is judged as if it had been told of
rank by rank."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import codec, journal
from harness import events as e
from harness.collectives import Collective, Recorded, Terms
from harness.diagnosis.waits.live import rank_wait
from harness.recovery import watching
from tests.replay.world import World, collective

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
    ],
)
def test_a_line_that_does_not_fit_together_is_no_record(path: tuple[Any, ...], value: Any) -> None:
    entries = (collective(0), collective(1))
    taken = e.EvidenceTaken(collection=0, rank=0, process=None, collectives=entries)
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
