"""What the members of a collective must agree on besides its operation and sizes: the rank that it
begins or ends at, and the parts of an all-to-all.

A recorder in the rank notes these (`harness.worker.exchanges`); flight records have neither.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.collectives import Terms
from harness.topology import ranks_name

_HABIT = 3
"""Earlier calls that were alike, to say what the next one should have been."""
_TO = frozenset({"reduce", "gather"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """`odd` ranks did something else than what the others did or expected; `tied` where nothing
    tells who of them is wrong."""

    verdict: str
    odd: tuple[int, ...]
    words: str
    tied: bool


History = Callable[[int], Sequence[Terms]]
"""Gives what a rank had agreed to in its earlier calls of this kind, in order."""


def disagreement(
    op: str, members: Sequence[int], told: Mapping[int, Terms], history: History
) -> Disagreement | None:
    """At one call of `op`, of which `told` is known by global rank. `members` are in group
    order."""
    return _roots(op, members, told, history) or _parts(op, members, told, history)


# --- roots ---------------------------------------------------------------------------------------


def _roots(
    op: str, members: Sequence[int], told: Mapping[int, Terms], history: History
) -> Disagreement | None:
    roots = {rank: terms.root for rank, terms in told.items() if 0 <= terms.root < len(members)}
    ranking = Counter(roots.values()).most_common()
    if len(ranking) < 2:
        return None
    usual: int | None = ranking[0][0]
    if ranking[0][1] < 2 or ranking[1][1] == ranking[0][1]:
        usual = _usual_root(roots, history)
    odd = [rank for rank, root in roots.items() if root != usual]
    words = ", ".join(
        f"{ranks_name(sorted(r for r in roots if roots[r] == root))} called {op}"
        f" {'to' if op in _TO else 'from'} rank {members[root]}"
        for root, _ in ranking
    )
    return Disagreement(
        verdict="collective_mismatch", odd=tuple(sorted(odd)), words=words, tied=usual is None
    )


def _usual_root(roots: Mapping[int, int], history: History) -> int | None:
    """What all had named in all earlier calls, when one of them names it now."""
    before = [terms.root for rank in roots for terms in history(rank)]
    named = set(before)
    return (
        before[0]
        if len(named) == 1 and len(before) >= _HABIT and named & {*roots.values()}
        else None
    )


# --- parts ---------------------------------------------------------------------------------------


def _parts(
    op: str, members: Sequence[int], told: Mapping[int, Terms], history: History
) -> Disagreement | None:
    size = len(members)
    known = {
        rank: terms
        for rank, terms in told.items()
        if rank in members and len(terms.sent) == len(terms.received) == size
    }
    place = {rank: at for at, rank in enumerate(members)}
    apart = [
        (sender, receiver)
        for sender, terms in known.items()
        for receiver, theirs in known.items()
        if terms.sent[place[receiver]] != theirs.received[place[sender]]
    ]
    if not apart:
        return None
    common = set(apart[0]).intersection(*apart[1:])
    if len(common) > 1:
        common = _broke_habit(common, known, history)
    odd = common if len(common) == 1 else {rank for pair in apart for rank in pair}
    words = "; ".join(
        f"rank {sender} sends to rank {receiver} {known[sender].sent[place[receiver]]:,}"
        f" and that one has room for {known[receiver].received[place[sender]]:,}"
        for sender, receiver in sorted(apart)[:3]
    )
    more = f"; and {len(apart) - 3} more pairs" if len(apart) > 3 else ""
    return Disagreement(
        verdict="shape_mismatch",
        odd=tuple(sorted(odd)),
        words=f"the parts of {op}, in elements: {words}{more}",
        tied=len(common) != 1,
    )


def _broke_habit(ranks: set[int], now: Mapping[int, Terms], history: History) -> set[int]:
    """Those whose parts were always the same and are not now; all where that tells none apart."""
    broke = set()
    for rank in ranks:
        before = history(rank)
        if len(before) >= _HABIT and len(set(before)) == 1 and before[0] != now[rank]:
            broke.add(rank)
    return broke if len(broke) == 1 else ranks
