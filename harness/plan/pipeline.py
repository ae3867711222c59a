"""Pipeline schedules: the order of work on every stage, when each piece runs, and what stays idle.

Time is counted in forward passes of one micro-batch through one stage. A backward pass takes two:
one for the gradient of the input (I), which the stage before waits for, one for that of the weights
(W), which nobody does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Kind = Literal["F", "B", "I", "W"]


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


Work = tuple[Kind, int, int]  # kind, micro-batch, chunk


def _one_f_one_b(rank: int, stages: int, micro_batches: int) -> Iterator[Work]:
    warm = min(micro_batches, stages - 1 - rank)
    for i in range(warm):
        yield "F", i, 0
    for i in range(micro_batches - warm):
        yield "F", warm + i, 0
        yield "B", i, 0
    for i in range(micro_batches - warm, micro_batches):
        yield "B", i, 0


def _interleaved(rank: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Work]:
    """Megatron's order: `stages` micro-batches through each chunk in turn."""
    total = micro_batches * chunks

    def work(kind: Kind, number: int) -> Work:
        turn, place = divmod(number, stages * chunks)
        chunk, offset = divmod(place, stages)
        return kind, turn * stages + offset, chunk if kind == "F" else chunks - 1 - chunk

    warm = min(total, (stages - rank - 1) * 2 + (chunks - 1) * stages)
    for i in range(warm):
        yield work("F", i)
    for i in range(total - warm):
        yield work("F", warm + i)
        yield work("B", i)
    for i in range(total - warm, total):
        yield work("B", i)


def _orders(schedule: Schedule, stages: int, micro_batches: int, chunks: int) -> list[list[Work]]:
    if schedule == "interleaved":
        return [list(_interleaved(r, stages, micro_batches, chunks)) for r in range(stages)]
    if schedule == "gpipe":
        every = range(micro_batches)
        return [[("F", i, 0) for i in every] + [("B", i, 0) for i in every]] * stages
    orders = [list(_one_f_one_b(rank, stages, micro_batches)) for rank in range(stages)]
    if schedule == "zero-bubble":
        return [[("I" if k == "B" else k, i, c) for k, i, c in order] for order in orders]
    return orders


_LASTS: dict[Kind, int] = {"F": 1, "B": 2, "I": 1, "W": 1}


def timeline(schedule: Schedule, *, stages: int, micro_batches: int, chunks: int = 1) -> Timeline:
    """Run a schedule on paper: every piece begins as soon as its rank and its input are there.

    `chunks` are the stages of each rank (interleaved only; each takes 1 / chunks of the time). In
    zero-bubble, after ZB-H1 of Qi et al. 2023 (arXiv:2401.10241), a rank works on weight
    gradients while it would wait, and before it would hold more than `stages` micro-batches.
    ValueError: sizes that the schedule cannot have.
    """
    if schedule != "interleaved" and chunks != 1:
        raise ValueError(f"{schedule} has one stage on a rank, not {chunks}")
    if schedule == "interleaved" and micro_batches % stages:
        raise ValueError(f"interleaved needs micro-batches in multiples of {stages} stages")
    done: dict[tuple[Kind, int, int], Fraction] = {}  # kind, micro-batch, place in the pipeline
    orders = _orders(schedule, stages, micro_batches, chunks)
    ranks: list[list[Piece]] = [[] for _ in orders]
    later: list[list[Work]] = [[] for _ in orders]  # weight gradients that may still wait
    held = [0] * stages  # micro-batches in flight
    places = stages * chunks

    def ready(rank: int, work: Work) -> Fraction | None:
        """When its input is there; None: not known yet."""
        kind, i, chunk = work
        place = chunk * stages + rank
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
            done["F" if kind == "F" else "B", i, chunk * stages + rank] = end
        if kind == "I":
            later[rank].append(("W", i, chunk))

    def advance(rank: int) -> bool:
        """Run the rank's next piece, if it can be known when."""
        order, waiting = orders[rank], later[rank]
        now = ranks[rank][-1].end if ranks[rank] else Fraction(0)
        if not order:
            if waiting:
                put(rank, waiting.pop(0), now)
                return True
            return False
        full = order[0][0] == "F" and held[rank] >= stages
        at = ready(rank, order[0])
        if waiting and (full or (at is not None and at > now)):
            put(rank, waiting.pop(0), now)
        elif at is not None:
            put(rank, order.pop(0), max(now, at))
        else:
            return False
        return True

    orders = [list(order) for order in orders]
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
