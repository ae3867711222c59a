"""What a rank did in order, messages to single ranks and collectives together: a program that goes
round in steps does the same in each."""

from collections.abc import Sequence

from harness.collectives import Collective, PointToPoint
from harness.diagnosis.waits.past import call_of, unbroken
from harness.diagnosis.waits.record import Call, Step, end_of

_OPEN = ("waiting", "posted")


def course(collectives: Sequence[Collective], p2p: Sequence[PointToPoint]) -> tuple[Step, ...]:
    """What the rank called last, up to the first operation that it has not come back from; empty
    where there are no messages, or nothing is unfinished at the end.

    It begins where both records do, and after the last gap: each holds the newest operations only.
    """
    messages = _without_old(sorted(p2p, key=lambda op: op.begun_ns))
    if not messages:
        return ()
    entries = sorted(collectives, key=lambda entry: entry.record_id)
    entries = entries[unbroken([entry.record_id for entry in entries]) :]
    begins = [messages[0].begun_ns if any(op.number > 1 for op in _firsts(messages)) else 0]
    if entries and entries[0].record_id > 0:
        begins.append(entries[0].created_ns)
    told: list[tuple[int, bool, Step]] = [
        (entry.created_ns, entry.done, (_where(entry), call_of(entry))) for entry in entries
    ]
    for op in messages:
        call = Call(op=op.direction, sizes=(op.sizes,), dtypes=(op.dtype,))
        told.append((op.begun_ns, op.state not in _OPEN, (end_of(op.peer), call)))
    told = sorted((one for one in told if one[0] >= max(begins)), key=lambda one: one[0])
    # Of messages begun together, later ones may be done.
    waits = min((op.begun_ns for op in messages if op.state == "waiting"), default=None)
    if waits is not None:
        return tuple(step for begun_ns, _, step in told if begun_ns <= waits)
    last = len(told)
    while last and not told[last - 1][1]:
        last -= 1
    return tuple(step for _, _, step in told[: last + 1]) if last < len(told) else ()


def _where(entry: Collective) -> str:
    """The role of its group, and the line where that is known: what is called from another line is
    something else."""
    role = entry.pg_desc or entry.pg
    line = entry.site.rpartition(":")[0].rpartition("/")[2]
    return f"{role} at {line}" if line else role


def _without_old(messages: Sequence[PointToPoint]) -> Sequence[PointToPoint]:
    """Without the oldest that are open still: they are kept however long ago they were begun."""
    at = 0
    while at < len(messages) and messages[at].state in _OPEN and messages[at].number > 1:
        at += 1
    return messages[at:]


def _firsts(messages: Sequence[PointToPoint]) -> list[PointToPoint]:
    """The oldest of each way."""
    found: dict[tuple[str, int, str, int], PointToPoint] = {}
    for op in messages:
        found.setdefault((op.direction, op.peer, op.pg, op.tag), op)
    return list(found.values())
