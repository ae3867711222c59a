"""Waits of a living rank, from what its agent could see of it: the last entries of its flight
record, the logs of its groups and point-to-point operations, its process, its stack, two looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from harness.collectives import Collective, GroupCreation, PointToPoint, Terms, is_done, same_input
from harness.diagnosis.waits.course import course
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
from harness.sightings import Frame

COMMUNICATION = ("torch/distributed/", "_engine_run_backward", "torch/autograd/graph.py")
"""Marks of frames that wait for other ranks when nothing of the user's is inside of them."""
_ASLEEP = ("futex", "poll", "epoll", "wait_woken", "sk_wait", "inet_", "tcp_")
_BUSY_SHARE = 0.5
_WORLD_NAME = "0"
_UNRECORDED = {"monitored_barrier"}
_record_id = attrgetter("record_id")


def rank_wait(evidence: EvidenceTaken, *, ref: EvidenceRef | None = None) -> RankWait:
    """What `evidence` says of the rank's waits. Without a second look `progressed` is None."""
    declared = _groups(evidence)
    entries = sorted(evidence.collectives, key=_record_id)
    slots: dict[str | tuple[str, str], int] = {}
    names = [pg if (pg := entry.pg) in declared else (pg, entry.pg_desc) for entry in entries]
    places = tuple([slots.setdefault(name, len(slots)) for name in names])
    groups = tuple(
        [declared[name] if isinstance(name, str) else _undeclared(*name) for name in slots]
    )
    past = _past(tuple([group.label for group in groups]), places, tuple(map(_parts, entries)))
    tracks = dict(zip(groups, past.tracks, strict=True))
    calls = [
        Pending(
            group=groups[places[at]], seq=entries[at].seq_id, call=past.calls[at],
            created_ns=entries[at].created_ns,
        )
        for at in past.open
    ]  # fmt: skip
    if not calls and (unrecorded := _unrecorded(evidence, declared, tracks)) is not None:
        calls.append(unrecorded)
        grown = _Track(tracks.get(unrecorded.group))
        grown.add(unrecorded.seq, unrecorded.call, "")
        grown.open.append(unrecorded.seq)
        tracks[unrecorded.group] = grown.frozen()
    begin = _unbroken([entry.record_id for entry in entries])
    waiting = [op for op in evidence.p2p if op.state == "waiting"]
    posted = [op for op in evidence.p2p if op.state == "posted"]
    creating = _creating(evidence.groups)
    pending = (
        *sorted(
            [*calls, *(_p2p_pending(evidence, declared, op) for op in waiting)],
            key=lambda op: op.created_ns,
        ),
        # What is only posted waits for nobody yet; it tells the other end that it was called.
        *(_p2p_pending(evidence, declared, op) for op in posted),
    )
    return RankWait(
        rank=evidence.rank,
        pending=pending,
        tracks=tracks,
        posted=_posted(evidence.p2p),
        whole=past.whole,
        program=past.program,
        course=course(entries[begin:], past.calls[begin:], evidence.p2p)
        if waiting or calls
        else (),
        creating=creating,
        meeting=next((g for g in reversed(evidence.groups) if _open(g)), None),
        process=evidence.process,
        doing=evidence.user_frame,
        stack=tuple(f"{frame.file}:{frame.function}" for frame in evidence.frames),
        progressed=evidence.advanced,
        evidence=ref,
        blocked=bool(waiting) or (bool(calls) and stands_in_it(evidence)),
        made=tuple((g.pg, g.ranks) for g in evidence.groups if g.pg and g.ranks and not g.failed),
        apart=evidence.branches,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past:
    """What a rank's record says, in whatever groups: `tracks` has one for each of them, `open` the
    places in the record of what has not finished."""

    tracks: tuple[Track, ...]
    calls: tuple[Call, ...]
    open: tuple[int, ...]
    program: tuple[tuple[str, Call], ...]
    whole: bool


_parts = attrgetter(
    "record_id", "seq_id", "op", "sizes", "dtypes", "site", "state", "retired",
    "terms",
)  # fmt: skip
_Parts = tuple[
    int, int, str, tuple[tuple[int, ...], ...], tuple[str, ...], str, str, bool,
    Terms | None,
]  # fmt: skip


# Thousands of ranks do the same, each in groups of its own: what is equal is made once.
@lru_cache(maxsize=4096)
def _past(labels: tuple[str, ...], places: tuple[int, ...], entries: tuple[_Parts, ...]) -> _Past:
    """Of `entries`, oldest first, and the groups that they are in: places in `labels`."""
    growing = [_Track() for _ in labels]
    calls, unfinished = [], []
    for at, entry in enumerate(entries):
        _, seq, op, sizes, dtypes, site, state, retired, terms = entry
        call, track = _call(op, sizes, dtypes), growing[places[at]]
        calls.append(call)
        track.add(seq, call, site)
        if terms is not None:
            track.terms[seq] = terms
        if not is_done(op, state, retired=retired):
            track.open.append(seq)
            unfinished.append(at)
    begin = _unbroken([entry[0] for entry in entries])
    return _Past(
        tracks=tuple(track.frozen() for track in growing),
        calls=tuple(calls),
        open=tuple(unfinished),
        program=tuple((labels[places[at]], calls[at]) for at in range(begin, len(entries))),
        whole=not entries or entries[begin][0] == 0,
    )


def _unbroken(records: Sequence[int]) -> int:
    """Where the newest ones begin between which none is left out."""
    for at in range(len(records) - 1, 0, -1):
        if records[at] - records[at - 1] > 1:
            return at
    return 0


def _unrecorded(
    evidence: EvidenceTaken, groups: Mapping[str, Group], tracks: Mapping[Group, Track]
) -> Pending | None:
    """A collective that Gloo's flight record leaves out, as the stack shows it: the next one on the
    group of all ranks, for want of better."""
    if not in_communication(evidence.frames):
        return None
    names = [frame.function for frame in evidence.frames if "torch/distributed/" in frame.file]
    world = groups.get(_WORLD_NAME)
    if world is None or not _UNRECORDED & set(names):
        return None
    seq = tracks[world].enqueued + 1 if world in tracks else 1
    return Pending(group=world, seq=seq, call=Call(op="monitored_barrier"), created_ns=1 << 62)


def stands_in_it(evidence: EvidenceTaken) -> bool:
    """Whether a rank with a collective pending waits for it, or does something else meanwhile."""
    if evidence.process is not None and evidence.process.state in ("T", "t", "D"):
        return False
    if in_communication(evidence.frames):
        return True
    cpu_seconds = evidence.cpu_delta or 0.0
    if cpu_seconds > _BUSY_SHARE * evidence.looked_apart:
        return False
    wchan = "" if evidence.process is None else evidence.process.wchan
    return not wchan or wchan.startswith(_ASLEEP)  # work.wait() leaves no frame of torch's


def in_communication(frames: tuple[Frame, ...]) -> bool:
    """Whether the innermost frames are torch's own communication, with nothing of others inside
    but the standard library."""
    for frame in frames:
        place = f"{frame.file} {frame.function}"
        if any(mark in place for mark in COMMUNICATION):
            return True
        if not _is_library(frame.file):
            return False
    return False


def _is_library(file: str) -> bool:
    return file.startswith("<") or "/python3" in file or "site-packages/torch/" in file


def call_of(entry: Collective) -> Call:
    """What must be alike on all members."""
    return _call(entry.op, entry.sizes, entry.dtypes)


@lru_cache(maxsize=4096)
def _call(name: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Call:
    op = name.rpartition(":")[2] or name
    return Call(op=op, sizes=sizes, dtypes=dtypes) if same_input(name) else Call(op=op)


@lru_cache(maxsize=4096)
def _undeclared(name: str, desc: str) -> Group:
    return Group(name=name, desc=desc)


def _groups(evidence: EvidenceTaken) -> dict[str, Group]:
    """Its own groups by name; of two with one name the younger."""
    return {
        made.pg: Group(name=made.pg, desc=made.pg_desc, ranks=made.ranks)
        for made in evidence.groups
        if made.member and made.pg and made.ranks
    }


def _creating(groups: tuple[GroupCreation, ...]) -> Creation | None:
    """The group that it is making now: the outermost of nested ones."""
    for group in groups:
        if _open(group) and group.ranks:
            return Creation(
                ranks=group.ranks, desc=group.pg_desc, began_ns=group.begun_ns, name=group.pg
            )
    return None


def _open(group: GroupCreation) -> bool:
    return not group.ended_ns and not group.failed


def _p2p_pending(evidence: EvidenceTaken, groups: Mapping[str, Group], op: PointToPoint) -> Pending:
    group = groups.get(op.pg) or _undeclared(op.pg, op.pg_desc)
    if op.tag:  # messages of one tag match each other alone
        group = replace(group, name=_tagged(op))
    members = tuple(rank for rank in group.ranks or () if rank != evidence.rank)
    send = op.direction == "send"
    return Pending(
        group=group,
        seq=op.number,
        call=Call(op=op.direction, sizes=(op.sizes,) if op.sizes else ()),
        created_ns=op.begun_ns,
        peers=(op.peer,) if op.peer >= 0 else members,
        send=send,
    )


def _posted(p2p: tuple[PointToPoint, ...]) -> dict[P2pKey, int]:
    """Operations called so far per way. Numbers count per tag, from the first on."""
    counts: dict[P2pKey, int] = {}
    for op in p2p:
        way = (op.peer, op.direction == "send", _tagged(op))
        counts[way] = max(counts.get(way, 0), op.number)
    return counts


def _tagged(op: PointToPoint) -> str:
    return f"{op.pg} tag {op.tag}" if op.tag else op.pg


class _Track:
    """A track while it grows."""

    def __init__(self, before: Track | None = None) -> None:
        self.first = -1 if before is None else before.first
        self.calls: list[Call | None] = [] if before is None else list(before.calls)
        self.sites: list[str] = [""] * len(self.calls)
        if before is not None and before.sites:
            self.sites = list(before.sites)
        self.open: list[int] = []
        self.terms: dict[int, Terms] = {} if before is None else dict(before.terms)

    def add(self, seq: int, call: Call, site: str) -> None:
        if self.first < 0:
            self.first = seq
        at = seq - self.first
        if at == len(self.calls):
            self.calls.append(call)
            self.sites.append(site)
            return
        if at < 0:
            return
        self.calls.extend([None] * (at + 1 - len(self.calls)))
        self.sites.extend([""] * (at + 1 - len(self.sites)))
        if self.calls[at] is None:
            self.calls[at], self.sites[at] = call, site

    @property
    def last(self) -> int:
        return self.first + len(self.calls) - 1

    def frozen(self) -> Track:
        last = self.last
        return Track(
            first=self.first,
            calls=tuple(self.calls),
            enqueued=last,
            completed=min(self.open) - 1 if self.open else last,
            sites=tuple(self.sites) if any(self.sites) else (),
            terms=self.terms,
        )
