"""The rank that called more or fewer operations than all others between two calls on groups of one
role, after all had done the same for a while: where sizes match, that stops nobody at first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEAST_ROUNDS = 8
_LEAST_OTHERS = 2
Order = Sequence[tuple[str, int]]
"""Role of the group, and number there, of each of a rank's calls, without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """A round is what a rank calls between a call on its group of `role` and the next one, `seq`:
    `here` operations, and `usual` ones on all others."""

    rank: int
    role: str
    seq: int
    here: int
    usual: int
    rounds: int
    """In which it did as the others, before."""

    @property
    def text(self) -> str:
        many = f"{self.here} other operation{'' if self.here == 1 else 's'}"
        return (
            f"rank {self.rank} called {many} between #{self.seq - 1} and #{self.seq} on"
            f" {self.role}, and all others {self.usual}; in the {self.rounds} rounds before they"
            " did alike"
        )


def slip(orders: Mapping[int, Order]) -> Slip | None:
    """The first of the only rank that has any. Ranks of which the order is one object are looked at
    once."""
    alike: dict[int, list[int]] = {}
    for rank, order in orders.items():
        alike.setdefault(id(order), []).append(rank)
    rounds: dict[str, dict[int, dict[int, list[int]]]] = {}
    for ranks in alike.values():
        for (role, seq), number in _rounds(orders[ranks[0]]).items():
            rounds.setdefault(role, {}).setdefault(seq, {}).setdefault(number, []).extend(ranks)
    found = [one for role, of in rounds.items() for one in _slips(role, of)]
    first = min(found, key=lambda one: (abs(one.here - one.usual), one.seq), default=None)
    return first if len({one.rank for one in found}) == 1 else None


def _rounds(order: Order) -> dict[tuple[str, int], int]:
    """How many other operations were called before each call, since the one before it in its role;
    not for roles in which a rank has two groups."""
    found: dict[tuple[str, int], int] = {}
    last: dict[str, tuple[int, int]] = {}
    several = set()
    for at, (role, seq) in enumerate(order):
        if role in last:
            before, number = last[role]
            if seq != number + 1:
                several.add(role)
            found[role, seq] = at - before - 1
        last[role] = at, seq
    return {key: number for key, number in found.items() if key[0] not in several}


def _slips(role: str, of: Mapping[int, Mapping[int, Sequence[int]]]) -> list[Slip]:
    """`of`: by number of the call, ranks by their operations before it. Nothing where more than one
    way is usual, or one rank has its own from the first."""
    rounds, found = 0, []
    for seq in sorted(of):
        (usual, most), *others = sorted(of[seq].items(), key=lambda each: -len(each[1]))
        if not others:
            rounds += len(most) > _LEAST_OTHERS
            continue
        (here, odd), *rest = others
        if rest or len(odd) > 1 or len(most) < _LEAST_OTHERS or rounds < _LEAST_ROUNDS:
            return []
        found.append(Slip(rank=odd[0], role=role, seq=seq, here=here, usual=usual, rounds=rounds))
    return found
