"""Ranks that wait where nobody comes because they called one operation more, or fewer, before:
the operations are all alike, only the lines they were called from tell.

The line of the present wait is one that the missing ranks called earlier, when the waiting ranks
called another one there. That two lines pair is no sign by itself (the branches of an `if`): they
must never have paired before, and the lines must be the same again when moved by one distance.
"""

from collections.abc import Sequence

from harness.diagnosis.waits.graph import Op, WaitGraph
from harness.diagnosis.waits.record import Group, Track
from harness.diagnosis.waits.root import Root, what
from harness.incidents import Where
from harness.topology import ranks_name


def shifted(graph: WaitGraph, asked: Sequence[Op]) -> Root | None:
    """The operation of `asked` whose lines show it, as a root; None where none does."""
    for op in asked:
        if op.p2p or op.creation or not op.missing or op.behind or op.differ or op.silent:
            continue
        found = {_beginning(graph, op, w, m) for w in op.waiters for m in op.missing}
        if len(found) == 1 and (beginning := found.pop()) is not None:
            return _root(graph, op, *beginning)
    return None


def _beginning(graph: WaitGraph, op: Op, waiter: int, missing: int) -> tuple[int, int] | None:
    """Where the calls of the two began to pair wrongly, and by how many; None when they did not."""
    mine, theirs = _track(graph, waiter, op.group), _track(graph, missing, op.group)
    if mine is None or theirs is None or not mine.site(op.seq):
        return None
    low = max(mine.first, theirs.first)
    last = theirs.enqueued
    while last >= low and theirs.site(last) != mine.site(op.seq):
        last -= 1
    if last < low:
        return None
    by, at = op.seq - last, last
    while at > low and theirs.site(at - 1) == mine.site(at - 1 + by) != "":
        at -= 1
    pairs = [(mine.site(seq), theirs.site(seq)) for seq in range(low, at + 1)]
    pair, before = pairs[-1], {known for known in pairs[:-1] if all(known)}
    moved = all(theirs.site(seq) == mine.site(seq + by) for seq in range(last, theirs.enqueued + 1))
    wrong = all(pair) and pair[0] != pair[1] and before and pair not in before
    return (at, by) if wrong and moved else None


def _track(graph: WaitGraph, rank: int, group: Group) -> Track | None:
    wait = graph.waits.ranks.get(rank)
    if wait is None:
        return None
    return wait.tracks.get(group) or wait.tracks.get(Group(name=group.name, desc=group.desc))


def _root(graph: WaitGraph, op: Op, seq: int, by: int) -> Root:
    mine = _track(graph, op.waiters[0], op.group)
    theirs = _track(graph, op.missing[0], op.group)
    assert mine is not None
    assert theirs is not None
    waiters, missing = ranks_name(op.waiters), ranks_name(op.missing)
    fewer = len(op.waiters) - len(op.missing)
    many = "one operation" if by == 1 else f"{by} operations"
    if fewer < 0:
        odd, did = op.waiters, f"{waiters} made {many} too many"
    elif fewer > 0:
        odd, did = op.missing, f"{missing} skipped {many}"
    else:
        odd = (*op.waiters, *op.missing)
        did = f"{waiters} made {many} too many, or {missing} skipped {many}"
    cause = (
        f"{did}: at #{seq} on {op.group.label} {waiters} called {_called(mine, seq)} and {missing}"
        f" {_called(theirs, seq)}; now {waiters} wait{_s(op.waiters)} in {what(op)} where nobody"
        " else comes"
    )
    return Root(
        verdict="collective_mismatch",
        ranks=tuple(sorted(odd)),
        cause=cause,
        confidence="likely",
        onset_ns=op.onset_ns,
        op=op,
        where=_where(mine.site(seq)),
        tied=fewer == 0,
    )


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


def _called(track: Track, seq: int) -> str:
    """`barrier at train.py:10 (save_checkpoint)`."""
    call = track.at(seq)
    head, _, function = track.site(seq).rpartition(":")
    return f"{'it' if call is None else call.op} at {head.rpartition('/')[2]} ({function})"


def _where(site: str) -> Where | None:
    head, _, function = site.rpartition(":")
    file, _, line = head.rpartition(":")
    return Where(file=file, line=int(line), function=function) if line.isdigit() else None
