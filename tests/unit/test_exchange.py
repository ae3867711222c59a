"""Whether data moves between ranks: what the kernel tells of real connections, and what follows."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness import events as e
from harness.agent.connections import Connection, Connections, established, sockets_of
from harness.collectives import GroupCreation
from harness.incidents import Incident
from harness.sightings import Activity, Flow, Traffic
from tests.replay.world import SECOND, World
from tests.unit.test_hang import go_on, seconds_still, stalled, verdict_within, waiting

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of one connection over loopback."""
    if established() is None:
        pytest.skip("this kernel does not tell of its sockets")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            yield one, other


def ours(end: socket.socket) -> Connection:
    table = established()
    assert table is not None
    return table[os.fstat(end.fileno()).st_ino]


def until_acked(end: socket.socket, count: int) -> None:
    """What has arrived is acknowledged in the kernel's own time."""
    while ours(end).acked < count:
        pass


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_a_connection_has_carried(family: socket.AddressFamily) -> None:
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with server, socket.create_connection(server.getsockname()[:2]) as one:
        other, _ = server.accept()
        with other:
            before = ours(one)
            assert before.local == one.getsockname()[:2]
            assert before.remote == other.getsockname()[:2]
            one.sendall(bytes(5000))
            left = 5000
            while left:
                left -= len(other.recv(left))
            assert ours(other).received == 5000
            until_acked(one, before.acked + 5000)
            assert ours(one).acked - before.acked == 5000
            assert (ours(one).pending, ours(one).unanswered) == (0, False)


def test_a_peer_that_does_not_read_is_no_dead_link(pair: Pair) -> None:
    one, _ = pair
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 20))
    assert ours(one).pending > 0
    assert not ours(one).unanswered


@dataclass
class Rank:
    rank: int
    pid: int
    store_port: int = 1
    nnodes: int = 1
    alive: bool = True


async def _between(ranks: list[Rank], pair: Pair) -> Traffic:
    connections = Connections(ranks)
    first = await connections.read(0)
    before = ours(pair[0]).acked
    pair[0].sendall(b"x" * 100)
    pair[1].recv(100)
    until_acked(pair[0], before + 100)
    connections._at = -1.0
    second = await connections.read(0)
    assert first is not None
    assert second is not None
    return connections.between(first, second, 0.4)


def test_only_connections_with_ranks_count(pair: Pair) -> None:
    assert os.fstat(pair[0].fileno()).st_ino in sockets_of(os.getpid())
    traffic = asyncio.run(_between([Rank(0, os.getpid())], pair))
    (flow,) = traffic.flows
    # Both ends are this process's, so it sends and receives.
    assert (flow.peers, flow.connections) == ((0,), 2)
    assert (flow.sent_bytes, flow.received_bytes) == (100, 100)
    store = pair[1].getsockname()[1]
    traffic = asyncio.run(_between([Rank(0, os.getpid(), store)], pair))
    assert [flow.connections for flow in traffic.flows] == [1]


def test_of_thousands_of_connections_those_that_matter_are_told() -> None:
    quiet = Connection(
        local=("a", 1), remote=("b", 2), acked=0, received=0, pending=0, tries=0, last_ack_ms=0
    )
    first = {at: replace(quiet, remote=(f"b{at:04}", 2)) for at in range(2000)}
    dead = replace(first[1500], pending=9, tries=5)
    second = first | {700: replace(first[700], acked=50), 1500: dead}
    traffic = Connections([]).between(first | {1500: dead}, second, 0.4, 3)
    assert [flow.remote for flow in traffic.flows] == ["b1500", "b0700", "b0000"]


@pytest.mark.parametrize(
    ("tries", "silent_ms", "pending", "dead"),
    [(3, 100, 10, True), (1, 2500, 10, True), (2, 500, 10, False), (0, 9000, 10, False)],
)
def test_when_a_connection_is_dead(tries: int, silent_ms: int, pending: int, dead: bool) -> None:
    connection = Connection(
        local=("a", 1), remote=("b", 2), acked=0, received=0,
        pending=pending, tries=tries, last_ack_ms=silent_ms,
    )  # fmt: skip
    assert connection.unanswered == dead


# --- what follows --------------------------------------------------------------------------------

HERE, THERE = "10.0.0.1", "10.0.0.2"
IDLE = Flow(local=HERE, remote=HERE, peers=(0, 1, 2), connections=2, total_bytes=1000)


def in_all_reduce(*flows: Flow, **more: Any) -> dict[str, Any]:
    return waiting(traffic=Traffic(seconds=0.4, flows=flows), **more)


def verdict_of(*flows: Flow, seconds: float = 200.0, **more: Any) -> tuple[World, Incident | None]:
    """All three ranks stand in one operation; rank 0 has `flows`."""
    seen = [in_all_reduce(*flows, **more), *(in_all_reduce(IDLE, **more) for _ in range(2))]
    world = stalled(*seen)
    return world, verdict_within(world, seconds)


def test_nothing_moves_and_nothing_is_on_its_way() -> None:
    world, incident = verdict_of(IDLE)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.confidence) == ("network_stall", "possible")
    assert 4.5 < seconds_still(world) < 5.5


def test_something_is_on_its_way() -> None:
    world, incident = verdict_of(Flow(local=HERE, remote=HERE, peers=(1,), pending_bytes=9))
    assert incident is not None
    assert 10.5 <= seconds_still(world) < 12


def test_ranks_that_compute_may_be_about_to_send() -> None:
    busy = Activity(seconds=0.3, cpu_seconds=0.3, log_quiet_seconds=1e6)
    _, incident = verdict_of(IDLE, seconds=60, activity=busy)
    assert incident is None


def test_data_that_moves_is_waited_for() -> None:
    flow = Flow(local=HERE, remote=HERE, peers=(1,), sent_bytes=1460, pending_bytes=3000)
    world, incident = verdict_of(flow, seconds=600)
    assert incident is None
    attempt = world.state.attempt
    assert attempt is not None
    assert attempt.stall is not None
    assert "data is moving (1,460 bytes)" in attempt.stall.look.why


def test_data_that_moves_between_looks_only_is_waited_for() -> None:
    """Half a second without any is nothing on a link that loses packets."""
    totals = iter(range(1000, 10_000_000, 7))
    world = World(nproc=3)
    world.evidence = lambda rank: in_all_reduce(replace(IDLE, total_bytes=next(totals)))
    world.start()
    for step in range(1, 6):
        world.step(step)
    assert verdict_within(world, 120) is None
    looks = len(world.state.collections)
    world.evidence = lambda rank: in_all_reduce(replace(IDLE, total_bytes=10_000_000))
    assert verdict_within(world, 60) is not None
    assert len(world.state.collections) >= looks + 2


def test_a_dead_connection_proves_it_and_names_both_ends() -> None:
    dead = Flow(local=HERE, remote=HERE, peers=(2,), pending_bytes=4096, tries=4, unanswered=True)
    world, incident = verdict_of(dead, IDLE)
    assert incident is not None
    verdict = incident.verdict
    assert (verdict.verdict, verdict.confidence) == ("network_stall", "proven")
    assert (verdict.first_failing, verdict.victims) == ((0, 2), (1,))
    assert "from rank 0 to rank 2 (10.0.0.1); the network between them" in verdict.cause
    assert 4.0 <= seconds_still(world) < 4.6


def test_a_rank_at_one_end_of_every_dead_connection_is_named_alone() -> None:
    dead = Flow(local=HERE, remote=HERE, peers=(2,), pending_bytes=4096, tries=4, unanswered=True)
    back = replace(dead, peers=(1,))
    world = stalled(in_all_reduce(dead), in_all_reduce(IDLE), in_all_reduce(back))
    incident = verdict_within(world, 200)
    assert incident is not None
    assert (incident.verdict.first_failing, incident.verdict.victims) == ((2,), (0, 1))
    assert "every such way ends at 2" in incident.verdict.reason


def test_a_dead_connection_while_others_move_is_waited_for() -> None:
    dead = Flow(local=HERE, remote=HERE, peers=(2,), pending_bytes=9, tries=4, unanswered=True)
    moving = Flow(local=HERE, remote=HERE, peers=(1,), received_bytes=10)
    assert verdict_of(dead, moving, seconds=60)[1] is None


def test_a_node_at_the_other_end_is_named() -> None:
    world = World(nnodes=2, nproc=1)
    dead = Flow(local=HERE, remote=THERE, pending_bytes=9, tries=5, unanswered=True)
    back = Flow(local=THERE, remote=HERE)
    elsewhere = Flow(local=HERE, remote="8.8.8.8", sent_bytes=10**6)  # somebody logs there
    seen = [in_all_reduce(dead, elsewhere), in_all_reduce(back)]
    world.evidence = lambda rank: seen[rank]
    world.start()
    for step in range(1, 6):
        world.step(step)
    world.say(e.PulsesRead(node_rank=0, pulses=()), 0)
    incident = verdict_within(world, 60)
    assert incident is not None
    assert incident.verdict.first_failing == (0, 1)
    assert "from rank 0 to rank 1 on node 1 (10.0.0.2)" in incident.verdict.cause


def test_without_facts_it_takes_as_long_as_ever() -> None:
    world = stalled(waiting(), waiting(), waiting())
    go_on(world, 8)
    assert world.state.incidents == []
    assert verdict_within(world, 10) is not None
    assert 10.5 <= seconds_still(world) < 12
    assert world.now_ns > SECOND


MAKES = GroupCreation(
    pg="", pg_desc="init_process_group", ranks=(0, 1, 2), member=True, begun_ns=0, ended_ns=0
)


def in_their_first_group(begun: float, **more: Any) -> tuple[World, int]:
    """All ranks begin it `begun` seconds after their start, and rank 1 alone is not told that it is
    there; and when that was."""
    world = World(nproc=3)
    world.start()
    world.say(e.PulsesRead(node_rank=0, pulses=()), 0)
    begun_ns = world.now_ns + int(begun * SECOND)

    def seen(rank: int) -> dict[str, Any]:
        ended_ns = 0 if rank == 1 else begun_ns + 10**8
        made = replace(MAKES, begun_ns=begun_ns, ended_ns=ended_ns)
        named = replace(made, pg="0", pg_desc="default_pg")
        groups = (made, named) if world.now_ns >= begun_ns else ()
        return waiting(collectives=(), groups=groups, **more)

    world.evidence = seen
    return world, begun_ns


def test_what_was_begun_a_moment_ago_is_no_stall() -> None:
    """However long the ranks were in coming: on a busy machine, half a minute."""
    world, begun_ns = in_their_first_group(15)
    assert verdict_within(world, 17) is None
    incident = verdict_within(world, 20)
    assert incident is not None
    assert (incident.verdict.verdict, incident.verdict.first_failing) == ("network_stall", (1,))
    assert "ranks 0,2 finished it" in incident.verdict.cause
    assert world.now_ns - begun_ns > 4 * SECOND


def test_ranks_that_get_no_cpu_finish_late() -> None:
    starved = Activity(seconds=0.3, starved_seconds=0.24, log_quiet_seconds=1e6)
    _, incident = verdict_of(IDLE, seconds=15, activity=starved)
    assert incident is None
    _, incident = verdict_of(IDLE, seconds=60, activity=starved)
    assert incident is not None
