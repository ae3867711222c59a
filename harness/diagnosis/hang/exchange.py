"""Does data still move between ranks that all stand in one operation?

TCP tells: what was acknowledged or received between the two looks, and what was sent again and
again without an answer. Where the data takes another way (NVLink, InfiniBand) it tells nothing.
"""

from dataclasses import dataclass, replace

from harness.diagnosis.hang.scene import Scene
from harness.events import StallLooked
from harness.incidents import Verdict
from harness.sightings import Flow
from harness.topology import ranks_name

_UNSEEN_NS = 3_000_000_000
"""What is granted before the first look: nothing was seen to move, and nothing not to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was seen of the connections of `ranks` with other ranks of the run.

    `known`: the connections of each of them were seen, and all their data goes over TCP.
    `total_bytes` is what they have carried so far, `quiet_ns` since when that is the same.
    `waiting`: something is to be sent, or was sent and is not yet acknowledged.
    `dead`: (rank, flow) where nobody answers, at either end.
    """

    known: bool
    moved_bytes: int
    total_bytes: int
    quiet_ns: int
    waiting: bool
    dead: tuple[tuple[int, Flow], ...]


def between(scene: Scene, ranks: tuple[int, ...]) -> Exchange:
    """What `ranks` exchange with others of the run."""
    homes = _homes(scene)
    own = {rank: _flows(scene, rank, homes) for rank in ranks}
    addresses = {flow.local for flows in own.values() for flow in flows}
    dead = [(rank, flow) for rank, flows in own.items() for flow in flows if flow.unanswered]
    for rank in sorted(scene.seen.keys() - set(ranks)):  # who sends to them may be done with it
        for flow in _flows(scene, rank, homes):
            towards = set(flow.peers) & set(ranks) or (not flow.peers and flow.remote in addresses)
            if flow.unanswered and towards:
                dead.append((rank, flow))
    flows = [flow for found in own.values() for flow in found]
    total = sum(flow.total_bytes for flow in flows)
    return Exchange(
        known=all(
            own[rank] and _by_tcp(scene, rank) and not _unsure(scene, rank) for rank in ranks
        ),
        moved_bytes=sum(flow.sent_bytes + flow.received_bytes for flow in flows),
        total_bytes=total,
        quiet_ns=_quiet_ns(scene, total),
        waiting=any(flow.pending_bytes for flow in flows),
        dead=tuple(dead),
    )


def _quiet_ns(scene: Scene, total: int) -> int:
    """Since when nothing moves. Half a second without is nothing: looks are compared."""
    stall = scene.attempt.stall
    if not total:
        return 0
    if stall is None or not stall.look.exchanged_bytes:
        return scene.look.ordered_ns - _UNSEEN_NS
    return stall.look.quiet_ns if stall.look.exchanged_bytes == total else scene.now_ns


def noted(look: StallLooked, exchange: Exchange | None) -> StallLooked:
    """`look` with what the next one is compared with."""
    if exchange is None:
        return look
    total = exchange.total_bytes
    return replace(look, exchanged_bytes=total, quiet_ns=exchange.quiet_ns)


def named(scene: Scene, verdict: Verdict, exchange: Exchange) -> Verdict:
    """`verdict` with the connections that nobody answers, where there are any and nothing moves."""
    if not exchange.dead or exchange.moved_bytes:
        return verdict
    homes = _homes(scene)
    ends: set[int] = set()
    parts: dict[str, int] = {}
    for rank, flow in exchange.dead:
        there = homes.get(flow.remote, -1)
        far = flow.peers or tuple(
            r for r in verdict.first_failing if scene.rank(r).node_rank == there
        )
        ends |= {rank, *far}
        if flow.peers:
            other = ranks_name(flow.peers)
        else:
            other = f"{ranks_name(far)} on node {there}" if far else f"node {there}"
        words = f"rank {rank} to {other} ({flow.remote})"
        parts[words] = max(parts.get(words, 0), flow.tries)
    told = "; ".join(list(parts)[:4]) + (f"; and {len(parts) - 4} more" if len(parts) > 4 else "")
    most = max(parts.values())
    times = f"{most} times" if most > 1 else "again"
    alone = _cut_off(exchange)
    first = tuple(sorted(ends)) if alone is None else (alone,)
    where = (
        f"all of {ranks_name(sorted(ends))} run, so it is the way between them that is cut, "
        + ("whichever end it is cut at" if alone is None else f"and every such way ends at {alone}")
    )
    left = sorted((set(verdict.first_failing) | set(verdict.victims) | ends) - set(first))
    return replace(
        verdict,
        first_failing=first,
        victims=tuple(left),
        innocent=tuple(rank for rank in verdict.innocent if rank not in ends),
        cause=f"{_operation(verdict)} cannot finish: what was sent over TCP is not acknowledged,"
        f" from {told}; the network between them",
        reason=f"the kernel has sent the same data {times} without an answer while nothing else"
        f" moved between the ranks; {where}",
        confidence="proven",
    )


def _cut_off(exchange: Exchange) -> int | None:
    """The rank that is one end of every dead connection, where there are several others."""
    pairs = {frozenset((rank, *flow.peers)) for rank, flow in exchange.dead}
    if len(pairs) < 2 or any(len(pair) != 2 for pair in pairs):
        return None
    shared = frozenset.intersection(*pairs)
    return next(iter(shared)) if len(shared) == 1 else None


def _operation(verdict: Verdict) -> str:
    ref = verdict.collective
    if ref is None:
        return "the operation"
    return f"{ref.op} #{ref.seq_id} on {ref.pg_desc or ref.pg}"


def _homes(scene: Scene) -> dict[str, int]:
    """The node of each address that ranks of the run talk from."""
    return {
        flow.local: scene.rank(rank).node_rank
        for rank, evidence in scene.seen.items()
        if evidence.traffic is not None
        for flow in evidence.traffic.flows
        if flow.peers or flow.local != flow.remote
    }


def _flows(scene: Scene, rank: int, homes: dict[str, int]) -> list[Flow]:
    """The connections of `rank` with other ranks, and not with whoever else it talks to."""
    evidence = scene.seen.get(rank)
    if evidence is None or evidence.traffic is None:
        return []
    return [flow for flow in evidence.traffic.flows if flow.peers or flow.remote in homes]


def _unsure(scene: Scene, rank: int) -> bool:
    """Whether it talks to somebody on its own machine who may be a rank of another agent."""
    traffic = scene.seen[rank].traffic
    return traffic is None or any(f.local == f.remote and not f.peers for f in traffic.flows)


def _by_tcp(scene: Scene, rank: int) -> bool:
    entries = scene.seen[rank].collectives
    return bool(entries) and entries[-1].op.startswith("gloo:")
