"""Waits of a living rank, from what its agent could see of it: the last entries of its flight
record, the logs of its groups and point-to-point operations, its process, its stack, two looks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from harness.collectives import GroupCreation, PointToPoint
from harness.columns import Creations, MadeGroup
from harness.diagnosis.waits.course import course
from harness.diagnosis.waits.past import Growing, recorded, undeclared
from harness.diagnosis.waits.record import (
    Begun,
    Call,
    Creation,
    Group,
    P2pKey,
    Pending,
    RankWait,
    Track,
)
from harness.events import EvidenceTaken
from harness.sightings import Frame

T = TypeVar("T")

COMMUNICATION = ("torch/distributed/", "_engine_run_backward", "torch/autograd/graph.py")
"""Marks of frames that wait for other ranks when nothing of the user's is inside of them."""
_ASLEEP = ("futex", "poll", "epoll", "wait_woken", "sk_wait", "inet_", "tcp_")
_BUSY_SHARE = 0.5
_WORLD_NAME = "0"
_created_ns = attrgetter("created_ns")
_UNRECORDED = {"monitored_barrier"}


class Stacks:
    """What evidence says, worked out once for all ranks that tell the same: stacks, and groups that
    they have made."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[Frame, ...], tuple[str, ...], bool]] = {}
        """By identity of the frames, which are kept for that."""
        self._declared = _Of(_declared)
        self._begun = _Of(_begun)

    def of(self, frames: tuple[Frame, ...]) -> tuple[tuple[str, ...], bool]:
        """`file:function` of each, and whether they are `in_communication`."""
        known = self._known.get(id(frames))
        if known is None:
            places = tuple([f"{frame.file}:{frame.function}" for frame in frames])
            known = self._known[id(frames)] = frames, places, in_communication(frames)
        return known[1], known[2]

    def declared(self, groups: Sequence[GroupCreation]) -> dict[str, Group]:
        """A rank's own groups by name; of two with one name the younger."""
        if isinstance(groups, Creations):
            return dict(filter(None, map(self._declared.__getitem__, groups.groups)))
        return dict(filter(None, map(_declared, groups)))

    def begun(self, groups: Sequence[GroupCreation]) -> tuple[Begun, ...]:
        """Groups that a rank has begun to make, and not failed to."""
        if isinstance(groups, Creations):
            return tuple(filter(None, map(self._begun.__getitem__, groups.groups)))
        return tuple(filter(None, map(_begun, groups)))


class _Of(dict[MadeGroup, T]):
    """What follows from a group, worked out once for all ranks that tell of it."""

    def __init__(self, work_out: Callable[[MadeGroup], T]) -> None:
        self._work_out = work_out

    def __missing__(self, made: MadeGroup) -> T:
        found = self[made] = self._work_out(made)
        return found


def _declared(made: GroupCreation | MadeGroup) -> tuple[str, Group] | None:
    if not (made.member and made.pg and made.ranks):
        return None
    return made.pg, Group(name=made.pg, desc=made.pg_desc, ranks=made.ranks)


def _begun(made: GroupCreation | MadeGroup) -> Begun | None:
    return (made.pg, made.ranks) if made.pg and made.ranks and not made.failed else None


def rank_wait(evidence: EvidenceTaken, stacks: Stacks | None = None) -> RankWait:
    """What `evidence` says of the rank's waits. Without a second look `progressed` is None.
    `stacks` remembers what the ranks before told."""
    groups, p2p = evidence.groups, evidence.p2p
    known = stacks or Stacks()
    stack, communicates = known.of(evidence.frames)
    declared = known.declared(groups) if groups else {}
    tracks, past, calls = recorded(evidence.collectives, declared)
    if (
        not calls
        and communicates
        and (unrecorded := _unrecorded(evidence, declared, tracks)) is not None
    ):
        calls.append(unrecorded)
        grown = Growing(tracks.get(unrecorded.group))
        grown.add(unrecorded.seq, unrecorded.call, "")
        grown.open.append(unrecorded.seq)
        tracks[unrecorded.group] = grown.frozen()
    if p2p:
        pending = _with_messages(evidence, declared, calls)
    else:
        pending = tuple(calls if len(calls) < 2 else sorted(calls, key=_created_ns))
    in_one = bool(groups) and not (isinstance(groups, Creations) and groups.all_ended)
    return RankWait(
        rank=evidence.rank,
        pending=pending,
        tracks=tracks,
        posted=_posted(p2p) if p2p else {},
        whole=past.whole,
        program=past.program,
        order=past.order,
        course=course(evidence.collectives, p2p) if p2p else (),
        creating=_creating(groups) if in_one else None,
        meeting=next((g for g in reversed(groups) if _open(g)), None) if in_one else None,
        process=evidence.process,
        doing=evidence.user_frame,
        stack=stack,
        progressed=evidence.advanced,
        blocked=(bool(p2p) and any([op.state == "waiting" for op in p2p]))
        or (bool(calls) and _stands_in_it(evidence, communicates=communicates)),
        made=known.begun(groups) if groups else (),
        apart=evidence.branches,
    )


def _with_messages(
    evidence: EvidenceTaken, declared: Mapping[str, Group], calls: list[Pending]
) -> tuple[Pending, ...]:
    """What it waits in, oldest first, and behind that what it has only posted: that waits for
    nobody yet, and tells the other end that it was called."""
    waiting = [op for op in evidence.p2p if op.state == "waiting"]
    posted = [op for op in evidence.p2p if op.state == "posted"]
    return (
        *sorted(
            [*calls, *(_p2p_pending(evidence, declared, op) for op in waiting)],
            key=_created_ns,
        ),
        *(_p2p_pending(evidence, declared, op) for op in posted),
    )


def _unrecorded(
    evidence: EvidenceTaken, groups: Mapping[str, Group], tracks: Mapping[Group, Track]
) -> Pending | None:
    """A collective that Gloo's flight record leaves out, as the stack of a rank that communicates
    shows it: the next one on the group of all ranks, for want of better."""
    names = [frame.function for frame in evidence.frames if "torch/distributed/" in frame.file]
    world = groups.get(_WORLD_NAME)
    if world is None or not _UNRECORDED & set(names):
        return None
    seq = tracks[world].enqueued + 1 if world in tracks else 1
    return Pending(group=world, seq=seq, call=Call(op="monitored_barrier"), created_ns=1 << 62)


def _stands_in_it(evidence: EvidenceTaken, *, communicates: bool) -> bool:
    """Whether a rank with a collective pending waits for it, or does something else meanwhile."""
    if evidence.process is not None and evidence.process.state in ("T", "t", "D"):
        return False
    if communicates:
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
    group = groups.get(op.pg) or undeclared(op.pg, op.pg_desc)
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
