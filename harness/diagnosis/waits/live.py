"""Waits of a living rank, from what its agent could see of it: the last entries of its flight
record, the logs of its groups and point-to-point operations, its process, its stack, two looks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from harness.collectives import Collective, GroupCreation, PointToPoint, same_input
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


def rank_wait(evidence: EvidenceTaken, *, ref: EvidenceRef | None = None) -> RankWait:
    """What `evidence` says of the rank's waits. Without a second look `progressed` is None."""
    groups = _groups(evidence)
    entries = sorted(evidence.collectives, key=lambda entry: entry.record_id)
    calls: list[Pending] = []
    tracks: dict[Group, _Track] = {}
    program: list[tuple[str, Call]] = []
    for entry in entries:
        group = groups.get(entry.pg) or _undeclared(entry.pg, entry.pg_desc)
        call = call_of(entry)
        program.append((group.label, call))
        track = tracks.get(group)
        if track is None:
            track = tracks[group] = _Track()
        track.add(entry.seq_id, call, entry.site)
        if not entry.done:
            track.open.append(entry.seq_id)
            calls.append(
                Pending(group=group, seq=entry.seq_id, call=call, created_ns=entry.created_ns)
            )
    unbroken = _unbroken(entries)
    if not calls and (unrecorded := _unrecorded(evidence, groups, tracks)) is not None:
        calls.append(unrecorded)
        track = tracks.setdefault(unrecorded.group, _Track())
        track.add(unrecorded.seq, unrecorded.call, "")
        track.open.append(unrecorded.seq)
    waiting = [op for op in evidence.p2p if op.state == "waiting"]
    posted = [op for op in evidence.p2p if op.state == "posted"]
    creating = _creating(evidence.groups)
    pending = (
        *sorted(
            [*calls, *(_p2p_pending(evidence, groups, op) for op in waiting)],
            key=lambda op: op.created_ns,
        ),
        # What is only posted waits for nobody yet; it tells the other end that it was called.
        *(_p2p_pending(evidence, groups, op) for op in posted),
    )
    return RankWait(
        rank=evidence.rank,
        pending=pending,
        tracks={group: track.frozen() for group, track in tracks.items()},
        posted=_posted(evidence.p2p),
        whole=not entries or unbroken[0].record_id == 0,
        program=_shared(tuple(program[len(entries) - len(unbroken) :])),
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


def _unbroken(entries: Sequence[Collective]) -> Sequence[Collective]:
    """The newest ones, as far back as none is left out."""
    for at in range(len(entries) - 1, 0, -1):
        if entries[at].record_id - entries[at - 1].record_id > 1:
            return entries[at:]
    return entries


def _unrecorded(
    evidence: EvidenceTaken, groups: Mapping[str, Group], tracks: Mapping[Group, "_Track"]
) -> Pending | None:
    """A collective that Gloo's flight record leaves out, as the stack shows it: the next one on the
    group of all ranks, for want of better."""
    if not in_communication(evidence.frames):
        return None
    names = [frame.function for frame in evidence.frames if "torch/distributed/" in frame.file]
    world = groups.get(_WORLD_NAME)
    if world is None or not _UNRECORDED & set(names):
        return None
    seq = tracks[world].last + 1 if world in tracks else 1
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


# Thousands of ranks do the same: what is equal is made once.


@lru_cache(maxsize=4096)
def _call(name: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Call:
    op = name.rpartition(":")[2] or name
    return Call(op=op, sizes=sizes, dtypes=dtypes) if same_input(name) else Call(op=op)


@lru_cache(maxsize=4096)
def _undeclared(name: str, desc: str) -> Group:
    return Group(name=name, desc=desc)


@lru_cache(maxsize=256)
def _shared(program: tuple[tuple[str, Call], ...]) -> tuple[tuple[str, Call], ...]:
    return program


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

    def __init__(self) -> None:
        self.first = -1
        self.calls: list[Call | None] = []
        self.sites: list[str] = []
        self.open: list[int] = []

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
        )
