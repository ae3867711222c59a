"""A real controller process at its borders: start, refusal to start, incident files, the end."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
from typing import Any

import pytest

from harness import codec
from harness import events as e
from harness.errors import UsageError
from harness.orders import Shutdown, StopRun
from harness.policy import Policy
from harness.topology import NodeRanks
from harness.wire import observer
from harness.wire.server import open_server


def test_where_it_listens_is_written_down(make_controller: Any) -> None:
    controller = make_controller()
    written = json.loads((controller.run_dir / "controller.json").read_text())
    assert written == {"address": controller.address, "pid": controller.process.pid}


def test_it_ends_with_its_launcher(make_controller: Any) -> None:
    controller = make_controller()
    controller.process.stdin.close()
    assert controller.wait() == 0
    assert "the launcher is gone" in controller.log()


def test_a_port_in_use_is_an_error_line(make_controller: Any) -> None:
    first = make_controller(name="first")
    second = make_controller(name="second", bind=first.address, start=False)
    ready = second.start()
    assert ready["error"] == f"port {first.address} is in use"
    assert ready["help"].startswith("it is held by pid ")
    assert second.wait() == 2
    assert second.stderr() == f"harness: port {first.address} is in use\n"
    assert not second.journal.exists()


def test_a_port_open_to_others_wants_a_token(make_controller: Any) -> None:
    controller = make_controller(bind="0.0.0.0:0", start=False)
    complaint = "0.0.0.0:0 can be reached from other machines and the run has no token"
    assert controller.start()["error"] == complaint
    assert controller.wait() == 2
    assert controller.stderr() == f"harness: {complaint}\n"


@pytest.mark.parametrize(
    ("bind", "complaint"),
    [
        ("127.0.0.1", "not an address: '127.0.0.1'"),
        ("127.0.0.1:70000", "not an address: '127.0.0.1:70000'"),
        ("192.0.2.1:0", "cannot listen on 192.0.2.1:0: Cannot assign requested address"),
        ("host.invalid:0", "cannot listen on host.invalid:0: "),
    ],
)
def test_an_impossible_address_is_named(bind: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        open_server(bind, "token")


def test_a_journal_it_cannot_go_on_with_is_an_error_line(make_controller: Any) -> None:
    controller = make_controller(start=False)
    controller.journal.write_text('{"schema":7,"harness":"9.9","run":"t"}\n')
    ready = controller.start()
    assert "has schema 7, this version of Harness reads schema 1" in ready["error"]
    assert controller.wait() == 2
    good = '{"schema":1,"harness":"0","run":"t"}\n'
    controller.journal.write_text(good + '{"half a line\n' + "{}\n")
    assert f"{controller.journal}:2: not a record" in controller.start()["error"]
    assert controller.wait() == 2
    assert controller.journal.read_text().startswith(good + '{"half')
    (controller.run_dir / "job.json").write_text("[]")
    assert "job.json" in controller.start()["error"]
    assert "Traceback" not in controller.stderr()


def test_two_controllers_never_write_one_journal(make_controller: Any) -> None:
    controller = make_controller()
    process, address = controller.process, controller.address
    controller.process, controller.bind = None, "127.0.0.1:0"
    assert "being written by another controller" in controller.start()["error"]
    assert controller.wait() == 2
    controller.end()
    controller.process, controller.address = process, address


def test_a_full_disk_ends_it_in_one_line_and_the_next_one_goes_on(make_controller: Any) -> None:
    controller = make_controller(token="x")

    def fill_up() -> None:
        room = controller.journal.stat().st_size + 1000
        resource.prlimit(controller.process.pid, resource.RLIMIT_FSIZE, (room, room))

    async def run() -> None:
        link = controller.link()
        await link.join()
        await anext(link.orders())
        fill_up()
        for count in range(50):
            link.report(0, e.FactsLost(rank=0, count=count))
        assert await asyncio.to_thread(controller.wait) == 2
        assert f"cannot write {controller.journal}: File too large" in controller.stderr()
        assert controller.journal.read_bytes().endswith(b"}\n")
        # There is room again: what the agent had to say comes after all, each once.
        controller.start()
        await observer.do(controller.address, StopRun(why="x", signal=0), "t", "x")
        await link.close()

    asyncio.run(run())
    controller.wait()
    told = [r.event.count for r in controller.records() if isinstance(r.event, e.FactsLost)]
    assert told == list(range(50))


def test_incident_files_follow_the_journal(make_controller: Any) -> None:
    controller = make_controller()
    folder = controller.run_dir / "incidents" / "001"

    async def run() -> None:
        link = controller.link()
        await link.join()
        link.report(
            0,
            e.WorkerExited(rank=1, pid=5, exit_code=None, signal=9, exited_ns=1, ordered=False),
        )
        async for _, record in observer.watch(controller.address, 0, ""):
            if isinstance(record.event, e.IncidentOpened):
                break
        await link.close()

    # The scripted decider starts no attempt, so one is put into the journal it resumes from.
    controller.kill()
    stamp = e.Stamp(run="t", attempt=0, source="controller", seq=2, wall_ns=1, mono_ns=1)
    nodes = (NodeRanks(node_rank=0, host="host0", first_rank=0, size=2),)
    started = e.AttemptStarted(attempt=0, world_size=2, nodes=nodes, why="first")
    with controller.journal.open("ab") as file:
        file.write(codec.encode(e.Record(stamp=stamp, event=started)) + b"\n")
    controller.start()
    asyncio.run(run())
    assert json.loads((folder / "incident.json").read_text()) == {
        "id": 1,
        "class": "killed_by_signal",
    }
    assert (folder / "card.txt").read_text() == "killed_by_signal: rank 1\n"
    controller.kill()
    (folder / "card.txt").unlink()
    controller.start()
    assert (folder / "card.txt").exists()


def test_the_end_does_not_wait_for_a_dead_agent(make_controller: Any) -> None:
    controller = make_controller(policy=Policy(agent_timeout=60.0))

    async def run() -> None:
        link = controller.link()
        await link.join()
        await link.command(StopRun(why="enough", signal=2), "agent")
        async for order in link.orders():
            if isinstance(order, Shutdown):
                controller.tell('{"type":"agent_gone","node_rank":0,"why":"exit 1"}')
        assert await asyncio.to_thread(controller.wait) == 0
        await link.close()

    asyncio.run(run())


def test_a_killed_controllers_port_is_free_at_once(make_controller: Any) -> None:
    controller = make_controller()
    host, _, port = controller.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        os.kill(controller.process.pid, signal.SIGKILL)
        controller.process.wait()
        assert controller.start() == {"address": f"{host}:{port}"}
