"""Waits of a living rank, from what its agent could see of it: the last entries of its flight
record, the log of its point-to-point operations, its process, its stack, and an earlier look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.collectives import Collective, same_input
from harness.diagnosis.waits.record import (
    Call,
    Creation,
    Group,
    P2pKey,
    Pending,
    RankWait,
    Track,
)
from harness.events import EvidenceTaken
from harness.incidents import EvidenceRef


@dataclass(frozen=True, slots=True, kw_only=True)
class PointToPoint:
    """An operation of the rank's own log. `peers` are global ranks, all members for a receive
    from anybody. `ordinal` counts from 1 per way: peer, direction, group and tag."""

    group: str
    peers: tuple[int, ...]
    send: bool
    ordinal: int
    done: bool
    created_ns: int
    tag: int = 0


def rank_wait(
    evidence: EvidenceTaken,
    *,
    groups: Iterable[Group] = (),
    earlier: EvidenceTaken | None = None,
    p2p: Sequence[PointToPoint] = (),
    creating: Creation | None = None,
    ref: EvidenceRef | None = None,
) -> RankWait:
    """`groups` are those on register; of two with one name the rank's own counts."""
    rank = evidence.rank
    known = {group.name: group for group in groups if rank in (group.ranks or ())}
    entries = sorted(evidence.collectives, key=lambda entry: entry.record_id)
    pending: list[Pending] = []
    tracks: dict[Group, _Track] = {}
    for entry in entries:
        group = known.get(entry.pg) or Group(name=entry.pg, desc=entry.pg_desc)
        call = call_of(entry)
        tracks.setdefault(group, _Track()).add(entry.seq_id, call, entry.site)
        if not finished(entry):
            tracks[group].open.append(entry.seq_id)
            pending.append(
                Pending(group=group, seq=entry.seq_id, call=call, created_ns=entry.created_ns)
            )
    pending += [_pending(known, op) for op in p2p if not op.done]
    return RankWait(
        rank=rank,
        pending=tuple(sorted(pending, key=lambda op: op.created_ns)),
        tracks={group: track.frozen() for group, track in tracks.items()},
        posted=_posted(p2p),
        whole=not entries or entries[0].record_id == 0,
        program=tuple((_label(known, entry), call_of(entry)) for entry in entries),
        creating=creating,
        process=evidence.process,
        doing=evidence.user_frame,
        stack=tuple(f"{frame.file}:{frame.function}" for frame in evidence.frames),
        progressed=None if earlier is None else progressed(earlier, evidence),
        evidence=ref,
    )


def call_of(entry: Collective) -> Call:
    """What must be alike on all members."""
    op = entry.op.rpartition(":")[2] or entry.op
    if not same_input(entry.op):
        return Call(op=op)
    return Call(op=op, sizes=entry.sizes, dtypes=entry.dtypes)


def finished(entry: Collective) -> bool:
    """Gloo knows `retired`, NCCL `completed`."""
    return entry.retired if entry.op.startswith("gloo:") else entry.state == "completed"


def progressed(earlier: EvidenceTaken, later: EvidenceTaken) -> bool:
    """Whether the rank recorded or finished anything between two looks."""
    return _marks(earlier) != _marks(later)


def _marks(evidence: EvidenceTaken) -> tuple[int, int]:
    last = max((entry.record_id for entry in evidence.collectives), default=-1)
    return last, sum(1 for entry in evidence.collectives if finished(entry))


def _label(known: dict[str, Group], entry: Collective) -> str:
    return (known.get(entry.pg) or Group(name=entry.pg, desc=entry.pg_desc)).label


def _pending(known: dict[str, Group], op: PointToPoint) -> Pending:
    return Pending(
        group=known.get(op.group) or Group(name=op.group, desc=""),
        seq=op.ordinal,
        call=Call(op="send" if op.send else "recv"),
        created_ns=op.created_ns,
        peers=op.peers,
        send=op.send,
    )


def _posted(p2p: Sequence[PointToPoint]) -> dict[P2pKey, int]:
    counts: dict[P2pKey, int] = {}
    for op in p2p:
        if len(op.peers) == 1:
            key = (op.peers[0], op.send, op.group)
            counts[key] = counts.get(key, 0) + 1
    return counts


class _Track:
    """A track while it grows."""

    def __init__(self) -> None:
        self.first = -1
        self.calls: list[Call | None] = []
        self.sites: list[str] = []
        self.open: list[int] = []

    def add(self, seq: int, call: Call, site: str) -> None:
        if self.first < 0:
            self.first = seq
        at = seq - self.first
        if at < 0:
            return
        self.calls.extend([None] * (at + 1 - len(self.calls)))
        self.sites.extend([""] * (at + 1 - len(self.sites)))
        if self.calls[at] is None:
            self.calls[at], self.sites[at] = call, site

    def frozen(self) -> Track:
        last = self.first + len(self.calls) - 1
        return Track(
            first=self.first,
            calls=tuple(self.calls),
            enqueued=last,
            completed=min(self.open) - 1 if self.open else last,
            sites=tuple(self.sites) if any(self.sites) else (),
        )
