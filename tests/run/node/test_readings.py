"""What a real agent reads of real ranks while they run: arrivals and vitals."""

import json
from typing import Any

from harness import events
from harness.agent.arrivals import BLOCK, MOST, ArrivalLog

MEETING = """
    import os, resource, time, torch, torch.distributed as dist
    from pathlib import Path
    dist.init_process_group("gloo")
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    rank, kept, step = dist.get_rank(), [], 0
    if rank == 1:
        kept = [open("/dev/null") for _ in range(60)]
    enough = torch.zeros(1)
    while not enough:
        time.sleep(0.05 if rank == 1 else 0.01)
        if rank == 0:
            enough[0] = os.path.exists("enough")
            dist.send(enough, 1)
        else:
            dist.recv(enough, 0)
        dist.all_reduce(torch.ones(1))
    while rank == 1:
        kept.append(open("/dev/null"))
"""


def test_arrivals_and_vitals(node: Any) -> None:
    enough = node.folder / "enough"
    enough.unlink(missing_ok=True)
    node.launch(MEETING)

    def told(event: events.ArrivalsRead) -> bool:
        return {rank.rank: rank.peers for rank in event.ranks} == {0: (1,), 1: (0,)}

    arrived = node.until(events.ArrivalsRead, told)
    assert "0" in arrived.groups
    assert arrived.ops[arrived.groups.index("0")] == "all_reduce"
    entered = {
        rank.rank: {
            (arrived.groups[group], seq): at
            for group, seq, at in zip(rank.groups, rank.seqs, rank.entered_us, strict=True)
        }
        for rank in arrived.ranks
    }
    common = entered[0].keys() & entered[1].keys()
    assert common
    # A collective ends when both have come: nobody enters the next before.
    for pg, seq in common:
        if (pg, seq + 1) in common:
            assert min(entered[r][pg, seq + 1] for r in (0, 1)) >= max(
                entered[r][pg, seq] for r in (0, 1)
            )

    def read_of_ranks() -> dict[int, Any]:
        return {v.rank: v for read in node.of(events.VitalsRead) for v in read.vitals}

    def opened() -> bool:
        held = read_of_ranks()
        return held.keys() == {0, 1} and held[1].fds >= held[0].fds + 60

    if not opened():
        node.until(events.VitalsRead, lambda _: opened())
    held = read_of_ranks()
    assert held[1].fd_limit == 200
    assert held[0].memory_bytes > 1 << 20
    assert node.of(events.VitalsRead)[0].memory_available_bytes > 1 << 20

    enough.touch()
    raised = node.until(events.WorkerRaised)
    assert "Too many open files" in raised.message
    assert raised.collectives > 0
    last = [v for read in node.of(events.VitalsRead) for v in read.vitals if v.rank == 1][-1]
    assert last.fds > 190
    node.finish()
    enough.unlink()


def flight_record(first: int, count: int) -> bytes:
    entries = [
        {
            "collective_seq_id": at + 1,
            "process_group": ["0", "default_pg"],
            "record_id": at,
            "profiling_name": "gloo:all_reduce",
            "time_created_ns": at * 1000,
            "is_p2p": False,
        }
        for at in range(first, first + count)
    ]
    return json.dumps({"entries": entries}).encode()


def picked(count: int) -> set[int]:
    log = ArrivalLog()
    log.note(flight_record(0, count))
    return {entry.collective_seq_id for entry in log.take(MOST)}


def test_thinned_alike_on_every_rank() -> None:
    """Ranks are read at different moments and have recorded different numbers of operations."""
    few, many = picked(500), picked(1400)
    assert len(few) <= 2 * MOST
    assert len(many) <= 2 * MOST
    starts = [seq for seq in many if seq % BLOCK == 0 and 0 < seq < 500 - BLOCK]
    assert starts
    assert all(start + at in few for start in starts for at in range(BLOCK))


def test_nothing_is_told_twice_and_rubbish_is_passed_over() -> None:
    log = ArrivalLog()
    log.note(flight_record(0, 10))
    assert len(log.take(MOST)) == 10
    log.note(flight_record(5, 10))
    assert [entry.record_id for entry in log.take(MOST)] == list(range(10, 15))
    log.note(b"{")
    log.note(b'{"entries":[{"record_id":"x"}]}')
    assert log.take(MOST) == []
