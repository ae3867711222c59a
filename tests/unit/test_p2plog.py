"""The point-to-point log without torch: whole records only, the ring, open ones are kept."""

import mmap
import os
import signal

from harness.worker import grouplog, layout, p2plog


def test_a_reader_beside_a_busy_writer_sees_whole_records_only() -> None:
    memory = mmap.mmap(-1, layout.BYTES)
    child = os.fork()
    if child == 0:
        writer = p2plog.P2pLogWriter(memory, layout.P2P_AT)
        while True:  # every field follows from the peer
            peer = writer.count % 1000
            writer.end(writer.post(peer & 1, peer, 0, 2 * peer, 1, (peer, 3)), p2plog.DONE)
    reader = p2plog.P2pLogReader(memory, layout.P2P_AT)
    seen = 0
    while seen < 20_000:
        for operation in reader.read({}, 64):
            peer = operation.peer
            assert operation.tag == 2 * peer
            assert operation.sizes == (peer, 3)
            assert operation.direction == p2plog.DIRECTIONS[peer & 1]
            seen += 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert reader.newest() == reader.newest() != (0, b"")
    assert len(reader.read({}, 64)) >= 63  # at most the one it was killed in is missing
    memory.close()


def test_the_ring_keeps_the_newest_and_what_is_open() -> None:
    memory = mmap.mmap(-1, layout.BYTES)
    groups = grouplog.GroupLogWriter(memory, layout.GROUPS_AT)
    mesh = groups.begin("7", "mesh_pp", range(0, 64, 8), True, 3)
    groups.end(mesh)
    writer = p2plog.P2pLogWriter(memory, layout.P2P_AT)
    reader = p2plog.P2pLogReader(memory, layout.P2P_AT)
    assert reader.read({}, 8) == ()
    assert reader.newest() == (0, b"")
    made = grouplog.GroupLogReader(memory, layout.GROUPS_AT).read()
    assert made[mesh].ranks == tuple(range(0, 64, 8))
    assert (made[mesh].place, made[mesh].failed) == (3, False)
    for _ in range(p2plog.CAPACITY):
        writer.end(writer.post(0, 8, mesh, 0, 1, (2, 3, 4, 5, 6)), p2plog.DONE)
    still = writer.post(1, 16, mesh, 0, 0, ())
    for _ in range(20):
        writer.end(writer.post(0, 8, mesh, 0, 1, ()), p2plog.DONE)
    operations = reader.read(made, 8)
    assert [operation.state for operation in operations] == ["posted", *["done"] * 8]
    assert (operations[0].peer, operations[0].pg_desc, operations[0].number) == (16, "mesh_pp", 1)
    assert operations[-1].number == p2plog.CAPACITY + 20
    before = reader.newest()
    writer.end(still, p2plog.DONE)
    assert reader.newest() == before
    assert len(reader.read(made, 8)) == 8
    assert reader.read(made, p2plog.CAPACITY)[0].sizes == (2, 3, 4, 30)
    memory.close()


def test_groups_that_are_open_failed_or_irregular() -> None:
    memory = mmap.mmap(-1, layout.BYTES)
    writer = grouplog.GroupLogWriter(memory, layout.GROUPS_AT)
    reader = grouplog.GroupLogReader(memory, layout.GROUPS_AT)
    odd = [0, 1, 2, 5, 9, 4]
    writer.begin("a", "open", odd, False)
    writer.end(writer.begin("b", "failed", [3], True), failed=True)
    writer.begin("c", "too many", [rank * rank for rank in range(400)], True)
    opened, failed, many = reader.read().values()
    assert (opened.ranks, opened.member, opened.ended_ns) == (tuple(odd), False, 0)
    assert (failed.ranks, failed.failed, failed.ended_ns > 0) == ((3,), True, True)
    assert many.ranks == ()
    for number in range(grouplog.CAPACITY):
        writer.end(writer.begin(str(number), "late", [number], True))
    still, first, *rest = reader.read().values()
    assert (still.pg, first.pg, len(rest)) == ("a", "0", grouplog.CAPACITY - 1)


def test_how_many_groups_are_made() -> None:
    memory = mmap.mmap(-1, layout.BYTES)
    writer = grouplog.GroupLogWriter(memory, layout.GROUPS_AT)
    reader = grouplog.GroupLogReader(memory, layout.GROUPS_AT)
    assert reader.made(0) == 0
    writer.end(writer.begin("a", "", [0], True))
    writer.end(writer.begin("b", "", [0], True), failed=True)
    opened = writer.begin("c", "", [0], True)
    assert reader.made(0) == reader.made(2) == 2
    writer.end(opened)
    assert reader.made(2) == 3
    for _ in range(grouplog.CAPACITY):
        writer.end(writer.begin("late", "", [0], True))
    assert reader.made(3) == grouplog.CAPACITY + 3
    memory.close()


def test_groups_of_others_take_no_room_of_its_own() -> None:
    """A mesh of thousands of ranks makes thousands of groups on every rank."""
    memory = mmap.mmap(-1, layout.BYTES)
    writer = grouplog.GroupLogWriter(memory, layout.GROUPS_AT)
    reader = grouplog.GroupLogReader(memory, layout.GROUPS_AT)
    writer.end(writer.begin("0", "default_pg", range(16_384), True, 5))
    opened = [writer.begin("1", "tp", range(8), True), writer.begin("2", "tp", range(8), False)]
    for number in range(3 * grouplog.CAPACITY):
        writer.end(writer.begin(str(3 + number), "pp", [number], False))
    found = reader.read()
    assert [group.pg for group in found.values()][:3] == ["0", "1", "2"]
    assert len(found) == 2 + grouplog.OTHERS
    assert list(found.values())[-1].pg == str(2 + 3 * grouplog.CAPACITY)
    assert [found[number].ended_ns for number in opened] == [0, 0]
    assert reader.made(0) == 1
    for number in opened:
        writer.end(number)
        made = reader.one(number)
        assert made is not None
        assert made.ended_ns > 0
    assert reader.made(0) == 2
    for _ in range(grouplog.OTHERS + 2):
        last = writer.begin("x", "none of them ends", [9], False)
    newest = reader.one(last)
    assert newest is not None
    assert newest.pg_desc == "none of them ends"
    assert reader.read()[1].ranks is reader.read()[1].ranks
    memory.close()
