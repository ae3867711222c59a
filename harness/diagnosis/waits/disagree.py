"""Ranks that called different things at one place of a group, whether they hung there or not."""

from collections.abc import Mapping, Sequence

from harness.collectives import Terms
from harness.diagnosis.waits.compare import follows, how_it_differs, odd_by_replicas, odd_ones
from harness.diagnosis.waits.graph import Op, WaitGraph
from harness.diagnosis.waits.record import Begun, Call, Group, Track, Waits
from harness.diagnosis.waits.root import Root, place, table, where_of
from harness.diagnosis.waits.terms import History, disagreement
from harness.topology import ranks_briefly, ranks_name

_HOW = {
    "order": "called it and the next one in the other order",
    "skipped": "skipped an operation: what it calls here is what the others call next",
    "extra": "called an operation that the others do not",
    "op": "called another operation",
    "shape": "called the same operation with tensors of another shape",
    "dtype": "called the same operation with another data type",
}


def mismatch(waits: Waits, op: Op) -> Root:
    """Members called different things at one place of their group."""
    odd, usual = list(op.differ), op.usual
    kinds = {_how(waits, op.group, op.seq, rank, op.calls, usual) for rank in odd}
    kind = kinds.pop() if len(kinds) == 1 else "op"
    verdict = "shape_mismatch" if kind in ("shape", "dtype") else "collective_mismatch"
    if usual is None:
        cause = f"{place(op)}: {table(op.calls)}; {_HOW_TIED[verdict]}"
    else:
        cause = f"{place(op)}: {table(op.calls)}; {ranks_name(odd)} {_HOW[kind]}"
    return Root(
        verdict=verdict,
        ranks=tuple(sorted(odd)),
        cause=cause,
        confidence="proven" if usual is not None else "likely",
        onset_ns=op.onset_ns,
        op=op,
        where=where_of(waits, odd) if usual is not None else None,
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


def group_mismatch(graph: WaitGraph) -> Root | None:
    """Ranks that made different groups under one name while others wait for them.

    All ranks of the world must take part in every `new_group`, in one order: torch counts the
    names up on each rank. Names that are not counters hold their ranks and cannot clash.
    """
    if not graph.ops:
        return None
    clash = _clash(graph.waits)
    if clash is None:
        return None
    made = {
        rank: ranks
        for rank, wait in graph.waits.ranks.items()
        for name, ranks in wait.made
        if name == clash
    }
    calls = {rank: Call(op="new_group", sizes=(ranks,)) for rank, ranks in made.items()}
    odd, usual = odd_ones(calls)
    sides: dict[tuple[int, ...], list[int]] = {}
    for rank, ranks in sorted(made.items()):
        sides.setdefault(ranks, []).append(rank)
    told = ", ".join(
        f"{ranks_name(who)} made [{ranks_briefly(what)}]" for what, who in sides.items()
    )
    first = min(graph.ops, key=lambda op: op.onset_ns)
    return Root(
        verdict="group_mismatch",
        ranks=tuple(odd),
        cause=f"new_group number {clash} is another group on other ranks: {told}; every rank has to"
        " make every group, in the same order",
        confidence="proven",
        onset_ns=first.onset_ns,
        op=first,
        where=where_of(graph.waits, odd),
        tied=usual is None,
    )


def _clash(waits: Waits) -> str | None:
    """The lowest number under which ranks made different groups."""
    begun: dict[int, Begun] = {}
    for wait in waits.ranks.values():
        begun.update(zip(map(id, wait.made), wait.made, strict=True))
    first: dict[str, tuple[int, ...]] = {}
    clashes = {name for name, ranks in begun.values() if first.setdefault(name, ranks) != ranks}
    return min((name for name in clashes if name.isdecimal()), key=int, default=None)


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


def terms_differ(graph: WaitGraph) -> Root | None:
    """The first call at which members agreed on the operation and not on the rank it begins or ends
    at, or on its parts."""
    waits = graph.waits
    tracks: dict[Group, dict[int, Track]] = {}
    for rank, wait in waits.ranks.items():
        for group, track in wait.tracks.items():
            if track.terms and group.ranks:
                tracks.setdefault(group, {})[rank] = track
    for group, of in tracks.items():
        assert group.ranks is not None
        # Of thousands of ranks that did the same all tracks are one object.
        distinct = {id(track.terms): track.terms for track in of.values()}
        if len(distinct) == 1 and not any(t.sent for t in distinct.popitem()[1].values()):
            continue
        for seq in sorted({seq for track in of.values() for seq in track.terms}):
            told = {rank: track.terms[seq] for rank, track in of.items() if seq in track.terms}
            calls = {rank: call for rank in told if (call := of[rank].at(seq)) is not None}
            if len(told) < 2 or len({call.op for call in calls.values()}) != 1:
                continue
            call = next(iter(calls.values()))
            found = disagreement(call.op, group.ranks, told, _earlier(of, seq, call))
            if found is not None:
                op = Op(
                    group=group, seq=seq, call=call, members=group.ranks,
                    onset_ns=min((op.onset_ns for op in graph.ops), default=0),
                    differ=found.odd, calls=calls, tied=found.tied,
                )  # fmt: skip
                return Root(
                    verdict=found.verdict, ranks=found.odd, cause=f"{place(op)}: {found.words}",
                    confidence="likely" if found.tied else "proven", onset_ns=op.onset_ns, op=op,
                    where=None if found.tied else where_of(waits, found.odd), tied=found.tied,
                )  # fmt: skip
    return None


def _earlier(of: Mapping[int, Track], seq: int, call: Call) -> History:
    """Of calls of the same operation."""

    def earlier(rank: int) -> list[Terms]:
        track = of[rank]
        known = [(at, terms) for at, terms in track.terms.items() if at < seq]
        return [t for at, t in sorted(known) if (c := track.at(at)) is not None and c.op == call.op]

    return earlier


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
