"""A step at which all ranks do the same, agreed on without a word between them.

The step lies a little ahead of the furthest rank. It is first proposed: a rank that comes there
waits. When every node has said that none of its ranks was there before it was told, the step is
agreed to; otherwise a later one is proposed. So no rank can stop, or save, where another went on.
"""

from harness import events as e
from harness import orders as o
from harness.recovery.ending import Decision
from harness.state import AttemptState, Meeting

_MARGIN = 2
"""Steps beyond the furthest rank. Each further try takes eight times as many: steps may take less
than the way to the rank and back."""
_MARGIN_GROWTH = 8

Kind = type[o.StopAtStep] | type[o.SaveAtStep]


def propose(
    kind: Kind, attempt: AttemptState, at: Meeting | None, reachable: set[int], asked: int = -1
) -> list[Decision]:
    """The first step, or a later one than `at`. `asked` is the furthest that is known anyway."""
    answers = [] if at is None else list(at.answers.values())
    tries = 0 if at is None or at.step < 0 else at.tries + 1
    furthest = max([asked, *(answer.furthest for answer in answers)])
    step = furthest + _MARGIN * _MARGIN_GROWTH**tries
    return tell(kind, attempt, reachable, step)


def agree(
    kind: Kind, attempt: AttemptState, at: Meeting, reachable: set[int], asked: int = -1
) -> list[Decision]:
    """The next orders on the way from a proposed step to one that all know of."""
    untold = reachable - at.told - at.agreed
    if untold and not at.agreed:
        return tell(kind, attempt, untold, at.step)
    if not at.agreed and not at.answers.keys() >= reachable:
        return []
    if not at.agreed and any(answer.missed for answer in at.answers.values()):
        return propose(kind, attempt, at, reachable, asked)
    return tell(kind, attempt, reachable - at.agreed, at.step, agreed=True)


def tell(
    kind: Kind, attempt: AttemptState, nodes: set[int], step: int, *, agreed: bool = False
) -> list[Decision]:
    order = kind(attempt=attempt.index, step=step, agreed=agreed)
    return [e.OrderGiven(node_rank=node, order=order) for node in sorted(nodes)]
