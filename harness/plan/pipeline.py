"""Pipeline schedules: the order of work on every stage, when each piece runs, and what stays idle.

Time is counted in forward passes of one micro-batch through one stage. A backward pass takes two:
one for the gradient of the input (I), which the stage before waits for, one for that of the weights
(W), which nobody does.
"""

from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from harness.plan.orders import Kind, Schedule, Work, check, order, place_of


def bubble(stages: int, micro_batches: int, *, chunks: int = 1) -> float:
    """Idle share of GPipe and 1F1B, (p - 1) / (v m + p - 1), where v > 1 stands for interleaved.

    Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473.
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One forward (F), backward (B, or its halves I and W) of a micro-batch on a rank; times in
    forward passes. `chunk` counts the stages of one rank."""

    kind: Kind
    micro_batch: int
    chunk: int
    begin: Fraction
    end: Fraction


_HOLDS: dict[Kind, int] = {"F": 1, "B": -1, "I": 0, "W": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What each rank does, in order."""

    ranks: tuple[tuple[Piece, ...], ...]

    @property
    def length(self) -> Fraction:
        return max(piece.end for rank in self.ranks for piece in rank)

    @property
    def bubble(self) -> float:
        """Share of all ranks' time in which nothing runs."""
        busy = sum((p.end - p.begin for rank in self.ranks for p in rank), Fraction(0))
        return float(1 - busy / (self.length * len(self.ranks)))

    @property
    def in_flight(self) -> int:
        """Most micro-batches (of one stage each) whose activations the first rank holds at once."""
        held = most = 0
        for piece in self.ranks[0]:
            held += _HOLDS[piece.kind]
            most = max(most, held)
        return most


_LASTS: dict[Kind, int] = {"F": 1, "B": 2, "I": 1, "W": 1}


def timeline(schedule: Schedule, *, stages: int, micro_batches: int, chunks: int = 1) -> Timeline:
    """Run a schedule on paper: every piece begins as soon as its rank and its input are there.

    `stages` are the ranks of the pipeline, `chunks` the stages of each rank, each of which takes
    1 / chunks of the time. In zero-bubble of one stage a rank, after ZB-H1 of Qi et al. 2023
    (arXiv:2401.10241), a rank works on weight gradients while it would wait, and before it would
    hold more than `stages` micro-batches. ValueError: sizes that the schedule cannot have.
    """
    check(schedule, stages, micro_batches, chunks)
    done: dict[tuple[Kind, int, int], Fraction] = {}  # kind, micro-batch, place in the pipeline
    orders = [deque(order(schedule, rank, stages, micro_batches, chunks)) for rank in range(stages)]
    free = schedule == "zero-bubble" and chunks == 1
    ranks: list[list[Piece]] = [[] for _ in orders]
    later: list[deque[Work]] = [deque() for _ in orders]  # weight gradients that may still wait
    held = [0] * stages  # micro-batches in flight
    places = stages * chunks

    def ready(rank: int, work: Work) -> Fraction | None:
        """When its input is there; None: not known yet."""
        kind, i, chunk = work
        place = place_of(schedule, rank, chunk, stages)
        if kind == "F":
            return Fraction(0) if place == 0 else done.get(("F", i, place - 1))
        if kind == "W":
            return Fraction(0)
        return done.get(("F", i, place) if place == places - 1 else ("B", i, place + 1))

    def put(rank: int, work: Work, begin: Fraction) -> None:
        kind, i, chunk = work
        end = begin + Fraction(_LASTS[kind], chunks)
        held[rank] += _HOLDS[kind]
        ranks[rank].append(Piece(kind=kind, micro_batch=i, chunk=chunk, begin=begin, end=end))
        if kind != "W":
            done["F" if kind == "F" else "B", i, place_of(schedule, rank, chunk, stages)] = end
        if kind == "I" and free:
            later[rank].append(("W", i, chunk))

    def advance(rank: int) -> bool:
        """Run the rank's next piece, if it can be known when."""
        todo, waiting = orders[rank], later[rank]
        now = ranks[rank][-1].end if ranks[rank] else Fraction(0)
        if not todo:
            if waiting:
                put(rank, waiting.popleft(), now)
                return True
            return False
        full = free and todo[0][0] == "F" and held[rank] >= stages
        at = ready(rank, todo[0])
        if waiting and (full or (at is not None and at > now)):
            put(rank, waiting.popleft(), now)
        elif at is not None:
            put(rank, todo.popleft(), max(now, at))
        else:
            return False
        return True

    while any([advance(rank) for rank in range(stages)]):
        pass
    return Timeline(ranks=tuple(tuple(rank) for rank in ranks))


def drawn(line: Timeline) -> list[str]:
    """One line of text a rank: what runs in each part of a forward pass, dots where it is idle.

    A piece shows its kind and micro-batch at its begin, and `=` as long as it lasts. Of several
    chunks the first is written in capitals, the others in small letters.
    """
    pieces = [piece for rank in line.ranks for piece in rank]
    unit = min(piece.end - piece.begin for piece in pieces)
    width = 1 + max(len(str(piece.micro_batch)) for piece in pieces)
    rows = []
    for number, rank in enumerate(line.ranks):
        cells = ["." * width] * int(line.length / unit)
        for piece in rank:
            first, last = int(piece.begin / unit), int(piece.end / unit)
            letter = piece.kind if piece.chunk == 0 else piece.kind.lower()
            cells[first] = f"{letter}{piece.micro_batch}".ljust(width, "=")
            cells[first + 1 : last] = ["=" * width] * (last - first - 1)
        rows.append(f"{number:>{len(str(len(line.ranks) - 1))}} |{''.join(cells)}|")
    return rows
