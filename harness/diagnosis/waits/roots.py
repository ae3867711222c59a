"""Where a hang began: the components of the wait-for graph that wait for nobody else, each with
its class and cause in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.diagnosis.waits import stuck
from harness.diagnosis.waits.compare import (
    follows,
    how_it_differs,
    odd_by_replicas,
    odd_ones,
    strange_step,
)
from harness.diagnosis.waits.graph import Op, WaitGraph, edges
from harness.diagnosis.waits.record import Call, Group, Track, Waits
from harness.diagnosis.waits.scc import components
from harness.incidents import Confidence, Where
from harness.topology import ranks_name

_HOW = {
    "order": "called it and the next one in the other order",
    "skipped": "skipped an operation: what it calls here is what the others call next",
    "extra": "called an operation that the others do not",
    "op": "called another operation",
    "shape": "called the same operation with tensors of another shape",
    "dtype": "called the same operation with another data type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """`op` is the operation that shows it best. `ranks` are the first-failing ones."""

    verdict: str
    ranks: tuple[int, ...]
    cause: str
    confidence: Confidence
    onset_ns: int
    op: Op
    where: Where | None = None
    tied: bool = False
    doubtful: bool = False
    """The records of its ranks may lack what they stand in, or how far the other end is."""
    calls: tuple[tuple[int, Call], ...] = ()
    """What ranks called at the place of `op`, when that is what went wrong."""


def find_roots(graph: WaitGraph) -> list[Root]:
    """All beginnings, those with more ranks that wait for them first."""
    world = graph.waits.world_size
    wanted: dict[int, list[Op]] = {}
    for op in graph.ops:
        for rank in op.lacks:
            wanted.setdefault(rank, []).append(op)
    roots: list[Root] = []
    for component in _sinks(edges(graph)):
        ranks = sorted(node for node in component if node < world)
        ops = [graph.ops[node - world] for node in component if node >= world]
        roots += _unguessed(graph, set(component), ops, wanted) or [
            root for root in [_root(graph, ranks, ops, wanted)] if root is not None
        ]
    return _without_echoes(roots, wanted)


def _sinks(out: Sequence[Sequence[int]]) -> list[list[int]]:
    """Components that lead nowhere else."""
    found = []
    for component in components(out):
        inside = set(component)
        if all(target in inside for node in component for target in out[node]):
            found.append(component)
    return found


def _unguessed(
    graph: WaitGraph, inside: set[int], ops: list[Op], wanted: dict[int, list[Op]]
) -> list[Root]:
    """Of a circle over several groups that only guesses close, what remains without them: ranks
    that others of it wait for and whose own operation lacks nobody for certain."""
    if len(ops) < 2 or any(op.differ for op in ops) or not any(op.weak for op in ops):
        return []
    if all(op.p2p for op in ops):
        return _surplus(graph, ops)
    world = graph.waits.world_size
    found = []
    for component in _sinks(edges(graph, guesses=False)):
        if len(component) > 1 or component[0] not in inside or component[0] < world:
            continue
        op = graph.ops[component[0] - world]
        root = _alone(graph, op)
        if root is not None and any(rank in wanted for rank in root.ranks):
            found.append(root)
    return [root for root in found if root.op.surplus] or found


def _alone(graph: WaitGraph, op: Op) -> Root | None:
    """What remains of `op` when what it lacks was guessed wrong."""
    return _stalled(graph, replace(op, missing=(), behind=(), members=op.waiters))


def _surplus(graph: WaitGraph, ops: list[Op]) -> list[Root]:
    """Of ranks that seem to wait for each other by point-to-point alone: the one that has more
    pending than its peer, which has finished the oldest of them then."""
    odd = [op for op in ops if op.surplus and op.behind]
    if len(odd) != 1:
        return []
    root = _alone(graph, odd[0])
    return [] if root is None else [root]


def _root(
    graph: WaitGraph, ranks: list[int], ops: list[Op], wanted: dict[int, list[Op]]
) -> Root | None:
    if not ranks:
        return _stalled(graph, ops[0])
    if not ops:
        asked = wanted.get(ranks[0])
        return None if not asked else _outside(graph, ranks[0], asked)
    differing = [op for op in ops if op.differ]
    if differing:
        return mismatch(graph.waits, min(differing, key=lambda op: op.onset_ns))
    if all(op.p2p for op in ops):
        return _deadlock(ranks, ops)
    return _cycle(graph, ranks, ops)


def _without_echoes(roots: list[Root], wanted: dict[int, list[Op]]) -> list[Root]:
    """Without operations that nobody else waits for and that finished elsewhere, when there is
    a beginning that others do wait for: their last news just had not come in. And without those
    whose ranks may stand in something older, when there is a better one."""
    awaited = [r for r in roots if any(rank in wanted for rank in r.ranks)]
    if awaited:
        roots = [r for r in roots if r in awaited or not r.op.finished]
    if any(not root.doubtful for root in roots):
        roots = [root for root in roots if not root.doubtful]
    return sorted(roots, key=lambda root: (root.onset_ns or 0, root.ranks))


# --- nobody is missing, nothing finishes --------------------------------------------------------


def _stalled(graph: WaitGraph, op: Op) -> Root | None:
    """All have called it and it does not finish."""
    stuck_ranks = tuple(sorted({*op.waiters, *(op.members if op.p2p else ())} - set(op.finished)))
    if not stuck_ranks:
        return None
    if op.weak and stuck_ranks == op.waiters and not op.finished:
        cause = (
            f"{what(op)} does not finish on {ranks_name(stuck_ranks)}, and all else that waits does"
            " so for it: the device or its link there"
        )
        return Root(
            verdict="network_stall", ranks=stuck_ranks, cause=cause, confidence="likely",
            onset_ns=op.onset_ns, op=op, where=_where(graph.waits, stuck_ranks),
        )  # fmt: skip
    if op.finished:
        who = ranks_name(op.finished)
        cause = (
            f"{what(op)} does not finish on {ranks_name(stuck_ranks)} although all members called"
            f" it and {who} finished it: the device or its link there"
        )
        return Root(
            verdict="network_stall", ranks=stuck_ranks, cause=cause, confidence="likely",
            onset_ns=op.onset_ns, op=op, where=_where(graph.waits, stuck_ranks),
        )  # fmt: skip
    cause = (
        f"{what(op)} was called by all {len(op.members)} members alike and finishes on none: the"
        " network or the devices between them"
    )
    return Root(
        verdict="network_stall", ranks=stuck_ranks, cause=cause, confidence="possible",
        onset_ns=op.onset_ns, op=op, tied=len(stuck_ranks) > 1,
        doubtful=op.weak or _cut(graph, op),
        where=_where(graph.waits, stuck_ranks),
    )  # fmt: skip


def _cut(graph: WaitGraph, op: Op) -> bool:
    return any(graph.waits.ranks[rank].cut for rank in op.waiters)


def _where(waits: Waits, ranks: Iterable[int]) -> Where | None:
    for rank in ranks:
        wait = waits.ranks.get(rank)
        if wait is not None and wait.head is not None:
            return wait.head.where or wait.doing
    return None


# --- one rank that others wait for ---------------------------------------------------------------


def _outside(graph: WaitGraph, rank: int, asked: Sequence[Op]) -> Root:
    """It waits for nobody and others wait for it."""
    op = min(asked, key=lambda op: (-len(op.waiters), op.onset_ns, op.seq))
    wait = graph.waits.ranks.get(rank)
    lacks = f"{ranks_name(op.waiters)} wait{'s' if len(op.waiters) == 1 else ''}"
    if op.creation:
        return Root(
            verdict="group_mismatch", ranks=(rank,),
            cause=f"{lacks} in new_group for rank {rank}, a member that does not make the group",
            confidence="likely", onset_ns=op.onset_ns, op=op,
            where=None if wait is None else wait.doing,
        )  # fmt: skip
    if wait is None:
        left = "a record that cannot be read" if rank in graph.waits.unreadable else "no record"
        cause = f"{lacks} in {what(op)}, all others are there, and rank {rank} left {left}"
        return Root(
            verdict="rank_stuck_outside_collective", ranks=(rank,), cause=cause,
            confidence="possible", onset_ns=op.onset_ns, op=op, tied=len(op.silent) > 1,
        )  # fmt: skip
    judged = stuck.classify(wait, op)
    return Root(
        verdict=judged.verdict,
        ranks=(rank,),
        cause=f"rank {rank} has not called {what(op)}, {lacks} there; {judged.words}",
        confidence=judged.confidence,
        onset_ns=op.onset_ns,
        op=op,
        where=wait.doing,
    )


# --- ranks that do not agree ---------------------------------------------------------------------


def mismatch(waits: Waits, op: Op) -> Root:
    """Members called different things at one place of their group."""
    odd, usual = list(op.differ), op.usual
    kinds = {_how(waits, op.group, op.seq, rank, op.calls, usual) for rank in odd}
    kind = kinds.pop() if len(kinds) == 1 else "op"
    verdict = "shape_mismatch" if kind in ("shape", "dtype") else "collective_mismatch"
    if usual is None:
        cause = f"{_place(op)}: {table(op.calls)}; {_HOW_TIED[verdict]}"
    else:
        cause = f"{_place(op)}: {table(op.calls)}; {ranks_name(odd)} {_HOW[kind]}"
    return Root(
        verdict=verdict,
        ranks=tuple(sorted(odd)),
        cause=cause,
        confidence="proven" if usual is not None else "likely",
        onset_ns=op.onset_ns,
        op=op,
        where=_where(waits, odd) if usual is not None else None,
        tied=usual is None,
        calls=tuple(sorted(op.calls.items())),
    )


_HOW_TIED = {
    "shape_mismatch": "the shapes or types differ",
    "collective_mismatch": "the operations differ",
}


def _how(
    waits: Waits, group: Group, seq: int, rank: int, calls: Mapping[int, Call], usual: Call | None
) -> str:
    """How `rank` differs from one that made the usual call, or from the other side of a tie."""
    here = calls[rank]
    other = next((r for r in sorted(calls) if calls[r] != here and usual in (None, calls[r])), None)
    odd = _track(waits, rank, group)
    if odd is None:
        return "op"
    if other is None or (reference := _track(waits, other, group)) is None:
        assert isinstance(usual, Call)  # only groups of the same role show what is usual
        reference = Track(first=seq, calls=(usual,))
    how = how_it_differs(odd, reference, seq)
    if how in ("op", "shape") and usual is not None and follows(odd, usual, here, seq):
        return "skipped"
    return how


def _track(waits: Waits, rank: int, group: Group) -> Track | None:
    wait = waits.ranks.get(rank)
    if wait is None:
        return None
    return wait.tracks.get(group) or wait.tracks.get(Group(name=group.name, desc=group.desc))


def divergence(graph: WaitGraph) -> Root | None:
    """The first place in any group's history at which members did not agree, also when nothing
    hung there."""
    waits = graph.waits
    found: list[tuple[int, Group, int, dict[int, Call]]] = []
    tracks: dict[Group, dict[int, Track]] = {}
    for rank, wait in waits.ranks.items():
        for group, track in wait.tracks.items():
            if track.calls:
                tracks.setdefault(group, {})[rank] = track
    for group, of in tracks.items():
        at = first_difference(of)
        if at is not None:
            calls = {rank: call for rank, t in of.items() if (call := t.at(at)) is not None}
            found.append((max(t.enqueued for t in of.values()) - at, group, at, calls))
    if not found:
        return None
    _, group, seq, calls = max(found, key=lambda item: item[0])
    odd, usual = odd_ones(calls)
    if usual is None:
        odd, usual = odd_by_replicas(waits, group, seq, calls)
    op = Op(
        group=group, seq=seq, call=usual or calls[odd[0]], members=tuple(sorted(tracks[group])),
        onset_ns=0, differ=tuple(odd), calls=calls, usual=usual, tied=usual is None,
    )  # fmt: skip
    return mismatch(waits, op)


def first_difference(tracks: Mapping[int, Track]) -> int | None:
    """Smallest sequence number at which two tracks disagree. Equal tracks are one object."""
    distinct = list({(track.first, id(track.calls)): track for track in tracks.values()}.values())
    if len(distinct) < 2:
        return None
    best: int | None = None
    longest = max(distinct, key=lambda track: len(track.calls))
    for track in distinct:
        # The oldest entry of a record may be the rest of a coalesced block.
        low = max(track.first + (track.first > 1), longest.first + (longest.first > 1))
        high = min(track.first + len(track.calls), longest.first + len(longest.calls))
        if best is not None:
            high = min(high, best)
        if low >= high:
            continue
        mine = track.calls[low - track.first : high - track.first]
        theirs = longest.calls[low - longest.first : high - longest.first]
        if mine != theirs:
            at = _differing(mine, theirs)
            if at is not None and not _cut_short(track, longest, low + at):
                best = low + at
    return best


def _differing(mine: Sequence[Call | None], theirs: Sequence[Call | None]) -> int | None:
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if one is not other and one is not None and other is not None and one != other:
            return at
    return None


def _cut_short(one: Track, other: Track, seq: int) -> bool:
    """Whether a coalesced block is only half called where a record ends."""
    last = min(one.enqueued, other.enqueued)
    calls = (one.at(seq), other.at(seq))
    return seq == last and any(call is not None and len(call.sizes) > 1 for call in calls)


def _deadlock(ranks: list[int], ops: list[Op]) -> Root:
    """All of them wait for each other with point-to-point operations."""
    parts = [
        f"rank {op.waiters[0]} in {op.call.op} with {ranks_name(op.members[1:])}" for op in ops
    ]
    cause = f"{ranks_name(ranks)} wait for each other: {', '.join(sorted(parts)[:6])}"
    op = min(ops, key=lambda op: op.onset_ns)
    return Root(
        verdict="p2p_deadlock", ranks=tuple(ranks), cause=cause,
        confidence="possible" if any(op.weak for op in ops) else "proven",
        onset_ns=op.onset_ns, op=op,
    )  # fmt: skip


def _cycle(graph: WaitGraph, ranks: list[int], ops: list[Op]) -> Root:
    """They wait for each other over several groups: one of them left the common order."""
    op = min(ops, key=lambda op: op.onset_ns)
    parts = [f"{ranks_name(op.waiters)} in {what(op)} for {ranks_name(op.lacks)}" for op in ops]
    around = f"{ranks_name(ranks)} wait for each other: {'; '.join(sorted(parts)[:4])}"
    strange = strange_step(graph.waits, ranks)
    if 0 < len(strange) < len(ranks):
        odd = sorted(strange)
        before, after = strange[odd[0]]
        cause = (
            f"{around}; {ranks_name(odd)} came from {before} to {after}, which no other rank does"
        )
        return Root(
            verdict="collective_mismatch", ranks=tuple(odd), cause=cause, confidence="likely",
            onset_ns=op.onset_ns, op=op, where=_where(graph.waits, odd),
        )  # fmt: skip
    return Root(
        verdict="collective_mismatch", ranks=tuple(ranks), confidence="possible",
        cause=f"{around}; their order of calls differs, or one of them skipped one",
        onset_ns=op.onset_ns, op=op, tied=True,
    )  # fmt: skip


# --- words ---------------------------------------------------------------------------------------


def what(op: Op) -> str:
    """`all_reduce #4 on mesh_dp`."""
    if op.creation:
        return f"new_group of {ranks_name(op.members)}"
    if op.p2p:
        return f"{op.call.op} #{op.seq} on {op.group.label}"
    return f"{op.call.op} #{op.seq} on {op.group.label}"


def _place(op: Op) -> str:
    return f"#{op.seq} on {op.group.label}"


def table(calls: Mapping[int, Call]) -> str:
    """`rank 0 all_reduce 100x16 float, ranks 1-3 all_reduce 200x16 float`."""
    groups: dict[Call, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call, []).append(rank)
    return ", ".join(f"{ranks_name(ranks)} {call.text}" for call, ranks in groups.items())
