"""Where a hang began: the components of the wait-for graph that wait for nobody else, each with
its class and cause in words."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.diagnosis.waits import stuck
from harness.diagnosis.waits.compare import off_course, strange_step
from harness.diagnosis.waits.disagree import group_mismatch, mismatch
from harness.diagnosis.waits.graph import Op, WaitGraph, edges
from harness.diagnosis.waits.nobody import nobody
from harness.diagnosis.waits.record import RankWait
from harness.diagnosis.waits.rhythm import slip
from harness.diagnosis.waits.root import Root, what, where_of
from harness.diagnosis.waits.scc import components
from harness.diagnosis.waits.shifted import shifted
from harness.topology import ranks_name


def find_roots(graph: WaitGraph) -> list[Root]:
    """All beginnings, those with more ranks that wait for them first."""
    strange = nobody(graph.waits)
    if strange is not None:
        return [strange]
    clash = group_mismatch(graph)
    if clash is not None:
        return [clash]
    world = graph.waits.world_size
    wanted: dict[int, list[Op]] = {}
    for op in graph.ops:
        for rank in op.lacks:
            wanted.setdefault(rank, []).append(op)
    roots: list[Root] = []
    # Nothing leads to a rank that nobody wants: where it waits, it is no beginning. Of thousands of
    # ranks that are nearly all.
    starts = [r for r in range(world) if r in wanted or not graph.stands.get(r)]
    for component in _sinks(edges(graph), [*starts, *range(world, world + len(graph.ops))]):
        ranks = sorted(node for node in component if node < world)
        ops = [graph.ops[node - world] for node in component if node >= world]
        found = _unguessed(graph, set(component), ops, wanted) or [
            root for root in [_root(graph, ranks, ops, wanted)] if root is not None
        ]
        roots += [root for root in found if root not in roots]
    return _without_echoes(roots, wanted)


def _sinks(out: Sequence[Sequence[int]], starts: Iterable[int] | None = None) -> list[list[int]]:
    """Components that lead nowhere else, of those that can be reached from `starts`."""
    found = []
    for component in components(out, starts):
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
        return None if not asked else shifted(graph, asked) or _outside(graph, ranks[0], asked)
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
            onset_ns=op.onset_ns, op=op, where=where_of(graph.waits, stuck_ranks),
        )  # fmt: skip
    if op.finished:
        who = ranks_name(op.finished)
        cause = (
            f"{what(op)} does not finish on {ranks_name(stuck_ranks)} although all members called"
            f" it and {who} finished it: the device or its link there"
        )
        return Root(
            verdict="network_stall", ranks=stuck_ranks, cause=cause, confidence="likely",
            onset_ns=op.onset_ns, op=op, where=where_of(graph.waits, stuck_ranks),
        )  # fmt: skip
    cause = (
        f"{what(op)} was called by all {len(op.members)} members alike and finishes on none: the"
        " network or the devices between them"
    )
    return Root(
        verdict="network_stall", ranks=stuck_ranks, cause=cause, confidence="possible",
        onset_ns=op.onset_ns, op=op, tied=len(stuck_ranks) > 1,
        doubtful=op.weak or _cut(graph, op),
        where=where_of(graph.waits, stuck_ranks),
    )  # fmt: skip


def _cut(graph: WaitGraph, op: Op) -> bool:
    return any(graph.waits.ranks[rank].cut for rank in op.waiters)


# --- one rank that others wait for ---------------------------------------------------------------


def _outside(graph: WaitGraph, rank: int, asked: Sequence[Op]) -> Root:
    """It waits for nobody and others wait for it."""
    op = min(asked, key=lambda op: (-len(op.waiters), op.onset_ns, op.seq))
    wait = graph.waits.ranks.get(rank)
    lacks = f"{ranks_name(op.waiters)} wait{'s' if len(op.waiters) == 1 else ''}"
    if op.creation and not _everybody(graph, op) and not _seen(wait):
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
    if rank in op.behind or wait.frozen:
        omits = f"takes no part in {what(op)}"
    elif op.p2p:
        omits = f"has not called the other end of {what(op)}"
    else:
        omits = f"has not called {what(op)}"
    return Root(
        verdict=judged.verdict,
        ranks=(rank,),
        cause=f"rank {rank} {omits}, {lacks} there; {judged.words}",
        confidence=judged.confidence,
        onset_ns=op.onset_ns,
        op=op,
        where=wait.doing,
    )


def _seen(wait: RankWait | None) -> bool:
    """Whether it shows what it does instead: it may still come, or never."""
    return wait is not None and (wait.frozen or bool(wait.ended) or wait.doing is not None)


def _everybody(graph: WaitGraph, op: Op) -> bool:
    """The first group of all: who is not there is late, whatever it does."""
    return len(op.members) == graph.waits.world_size and op.group.desc in (
        "init_process_group",
        "default_pg",
    )


# --- circles -------------------------------------------------------------------------------------


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
    making = [op for op in ops if op.creation]
    if making:
        return _unmade(graph, making, ops)
    parts = [f"{ranks_name(op.waiters)} in {what(op)} for {ranks_name(op.lacks)}" for op in ops]
    around = f"{ranks_name(ranks)} wait for each other: {'; '.join(sorted(parts)[:4])}"
    strange = strange_step(graph.waits, ranks)
    if 0 < len(strange) < len(ranks):
        odd = sorted(strange)
        before, after = strange[odd[0]]
        cause = (
            f"{ranks_name(odd)} came from {before} to {after}, which no other rank does; {around}"
        )
        return _odd_ones(graph, op, odd, cause)
    left = off_course(graph.waits, ranks)
    if 0 < len(left) < len(ranks):
        odd = sorted(left)
        expected, came = left[odd[0]]
        cause = (
            f"{ranks_name(odd)} went on to {came} where {expected} followed in all steps before;"
            f" {around}"
        )
        return _odd_ones(graph, op, odd, cause)
    uneven = slip({rank: wait.order for rank, wait in graph.waits.ranks.items()})
    if uneven is not None and uneven.rank in ranks:
        return _odd_ones(graph, op, [uneven.rank], f"{uneven.text}; {around}")
    return Root(
        verdict="collective_mismatch", ranks=tuple(ranks),
        confidence="likely" if all(_known(graph, op) for op in ops) else "possible",
        cause=f"{around}; their order of calls differs, or one of them skipped one",
        onset_ns=op.onset_ns, op=op, tied=True,
    )  # fmt: skip


def _odd_ones(graph: WaitGraph, op: Op, odd: Sequence[int], cause: str) -> Root:
    return Root(
        verdict="collective_mismatch", ranks=tuple(odd), cause=cause, confidence="likely",
        onset_ns=op.onset_ns, op=op, where=where_of(graph.waits, odd),
    )  # fmt: skip


def _known(graph: WaitGraph, op: Op) -> bool:
    """Whether whom `op` lacks is on record: a rank of which nothing is, on that group, may have
    called it long ago."""
    if op.p2p or op.weak:
        return not op.weak
    waits = [graph.waits.ranks[rank] for rank in op.missing]
    return all(wait.whole or _has_used(wait, op) for wait in waits)


def _has_used(wait: RankWait, op: Op) -> bool:
    names = {(group.name, group.desc) for group in wait.tracks}
    return (op.group.name, op.group.desc) in names


def _unmade(graph: WaitGraph, making: list[Op], ops: list[Op]) -> Root:
    """Some make a group while members of it wait for them elsewhere: these have left it out. Where
    they are more, and all in one operation, it is those who make the group that are alone."""
    op = min(making, key=lambda op: (-len(op.waiters), op.onset_ns))
    odd = tuple(op.lacks)
    others = [f"{ranks_name(o.waiters)} in {what(o)}" for o in ops if set(o.waiters) & set(odd)]
    cause = (
        f"{ranks_name(op.waiters)} in {what(op)}, which {ranks_name(odd)} did not call:"
        f" {', '.join(others[:3])}"
    )
    if len(op.waiters) < len(odd) and any(set(odd) <= set(o.waiters) for o in ops):
        odd = tuple(op.waiters)
    return Root(
        verdict="group_mismatch", ranks=odd, cause=cause, confidence="proven",
        onset_ns=op.onset_ns, op=op, where=where_of(graph.waits, odd),
    )  # fmt: skip
