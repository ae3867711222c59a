"""Journals and peers of other versions: what is missing has its default, what is new is left out or
named, and nothing is guessed."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harness import codec, journal, report
from harness import events as e
from harness.errors import UsageError
from harness.state import fold_all
from harness.wire import control_pb2 as pb
from harness.wire import control_pb2_grpc as pb_grpc
from harness.wire.agent_link import AgentLink
from harness.wire.server import open_server

RECORDINGS = sorted((Path(__file__).parents[1] / "replay" / "recordings").rglob("events.jsonl"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_what_came_later(line: dict[str, Any]) -> dict[str, Any]:
    """As the first version would have written it that knew this kind of event at all."""
    kind: Any = getattr(e, line["type"])
    needed = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    event = {name: value for name, value in line["event"].items() if name in needed}
    if "policy" in event:
        event["policy"] = {"max_restarts": event["policy"]["max_restarts"]}
    return {**line, "event": event}


@pytest.mark.parametrize("path", RECORDINGS[::6], ids=lambda path: "/".join(path.parts[-3:-1]))
def test_a_journal_of_an_earlier_version_is_read_and_shown(path: Path, tmp_path: Path) -> None:
    old = tmp_path / journal.FILE_NAME
    header = {"schema": 1, "harness": "0.0.1", "run": "old"}
    written = [header, *map(without_what_came_later, lines(path))]
    old.write_text("".join(json.dumps(line) + "\n" for line in written))
    records = list(journal.read(old))
    assert len(records) == len(written) - 1
    state = fold_all(records)
    assert state.run is not None
    assert json.dumps(report.report_json(state))
    assert all(report.card(state, incident) for incident in state.incidents)


def test_what_a_newer_version_adds_is_left_out() -> None:
    for line in lines(RECORDINGS[0]):
        known = codec.decode(json.dumps(line).encode())
        line["stamp"]["zone"] = "b"
        line["event"]["weather"] = {"rain": True}
        assert codec.decode(json.dumps(line).encode()) == known


def test_an_event_that_only_a_newer_version_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    stamp = {"run": "t", "attempt": 0, "source": "controller", "seq": 0, "wall_ns": 1, "mono_ns": 1}
    new = {"stamp": stamp, "type": "RankTeleported", "event": {}}
    path.write_text('{"schema":1,"harness":"9","run":"t"}\n' + json.dumps(new) + "\n")
    with pytest.raises(journal.JournalError, match=r":2: .*'RankTeleported' \(written by a newer"):
        list(journal.read(path))
    said: list[str] = []
    assert list(journal.read(path, on_bad="skip", say=said.append)) == []
    assert len(said) == 1


def test_a_journal_of_an_earlier_schema_says_what_reads_it(tmp_path: Path) -> None:
    path = tmp_path / journal.FILE_NAME
    path.write_text('{"schema":0,"harness":"0.0.1","run":"t"}\n')
    with pytest.raises(journal.JournalError, match="has schema 0, this version") as raised:
        list(journal.read(path))
    assert raised.value.help == "read it with Harness 0.0.1"


class _NewerController(pb_grpc.ControlServicer):
    async def Join(self, request: pb.Hello, context: Any) -> None:
        await context.write(pb.Order(welcome=pb.Welcome(run="t", node_rank=0)))
        await context.write(pb.Order(id=1, body=b'{"type":"Teleport","rank":0}'))
        await asyncio.Event().wait()

    async def Report(self, batches: Any, context: Any) -> None:
        async for batch in batches:
            await context.write(pb.Ack(source=batch.source, seq=-1))


def test_an_order_of_a_newer_controller_ends_the_agent_in_words() -> None:
    async def run() -> None:
        server, address = open_server("127.0.0.1:0", "")
        add: Any = pb_grpc.add_ControlServicer_to_server
        add(_NewerController(), server)
        await server.start()
        link = AgentLink(
            address=address, node_rank=0, local_world_size=1, host="h", pid=1, token="",
            controller_timeout=20.0,
        )  # fmt: skip
        await link.join()
        with pytest.raises(UsageError, match=r"orders what this version of Harness, .*Teleport"):
            await anext(link.orders())
        await link.close()
        await server.stop(0)

    asyncio.run(run())
