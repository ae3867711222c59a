"""Reads the digests of this node's ranks and tells the controller: one number for all tensors that
the same ranks have in common, one row for all ranks with the same number.

Each rank's newest digests, tensor by tensor, are kept for a while, for when it matters which of
them differ.
"""

import asyncio
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness import checkpointdir
from harness import events as e
from harness import orders as o
from harness.agent.chains import Chain
from harness.agent.closeups import CloseUps
from harness.agent.workers import Worker
from harness.sightings import DigestPart, DigestRow, TensorDigests
from harness.topology import Runs, runs_of
from harness.wire.waiting import until_beat
from harness.worker.digestlog import Answer, Values
from harness.worker.digests.books import AT_REST, COLUMNS, LEFT

_PAUSE_SECONDS, _LONGEST_SECONDS = 0.25, 0.5
"""Between two looks for new digests; the latter where there are none."""
_MOST_ROWS = 4096
_KEPT_BYTES = 2 << 20
"""Of one rank's digests."""
_KEPT_LOOKS = 2048
_DIGEST = struct.Struct("=Q")
_ALONE = ("learnt", "hand")
"""Parts of one tensor each: which of them are replicas has to be found out."""
_Whose = tuple[int, str, Runs]
"""A part, how its members are known, and these: ranks may have one part with other ranks each."""
Report = Callable[[int, e.Event], None]
"""Takes an attempt and an event of it."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part as one plan of a rank has it: the positions of its tensors."""

    told: DigestPart
    places: tuple[int, ...]


class _Look(NamedTuple):
    """What a rank had at its `number`-th look: `digests` are those of all tensors of `plan`, as
    bytes. Thousands of looks are kept, and a number of Python's takes four times as much."""

    plan: int
    number: int
    digests: bytes

    def at(self, place: int) -> int:
        """The digest of the tensor at that place of the plan."""
        (digest,) = _DIGEST.unpack_from(self.digests, _DIGEST.size * place)
        return int(digest)


class _Rank:
    """What is known of one rank's digests."""

    def __init__(self) -> None:
        self.plans: dict[int, list[_Part]] = {}
        self.names: dict[int, list[str]] = {}
        self.kept: deque[_Look] = deque()
        self.chain = Chain()
        self.size = 0

    def place(self, part: int, name: str, count: int | None) -> tuple[int, int] | None:
        """Plan, and place in it, of a tensor of `part`; as it was at look `count`, else the newest
        one."""
        looked = {look.plan for look in self.kept if look.number == count}
        for plan in sorted(self.plans, reverse=True):
            if count is not None and plan not in looked:
                continue
            for each in self.plans[plan]:
                if each.told.part == part:
                    for at in each.places:
                        if self.names[plan][at] == name:
                            return plan, at
        return None

    def keep(self, values: Values) -> None:
        digests = struct.pack(f"={len(values.digests)}Q", *values.digests)
        self.kept.append(_Look(values.plan, values.count, digests))
        self.size += len(digests)
        while (self.size > _KEPT_BYTES and len(self.kept) > 1) or len(self.kept) > _KEPT_LOOKS:
            self.size -= len(self.kept.popleft().digests)


class Digests:
    """The digests of one attempt's ranks on this node."""

    def __init__(self, node_rank: Callable[[], int], report: Report, python: str = "") -> None:
        self._node_rank = node_rank
        self._report = report
        self._attempt = -1
        self._ranks: dict[int, _Rank] = {}
        self._told: dict[_Whose, DigestPart] = {}
        self._close = CloseUps(python)
        self._workers: Sequence[Worker] = ()

    async def watch(self, workers: Callable[[], Collection[Worker]]) -> None:
        """Read and report for ever."""
        pause = _PAUSE_SECONDS
        while True:
            await asyncio.sleep(until_beat(pause))
            news = self.read([worker for worker in workers() if worker.guest])
            pause = _PAUSE_SECONDS if news else _LONGEST_SECONDS

    def read(self, workers: Sequence[Worker]) -> bool:
        """Report what is new; whether there was anything."""
        if not workers:
            return False
        if workers[0].attempt != self._attempt:
            self._attempt = workers[0].attempt
            self._ranks.clear()
            self._told.clear()
        self._workers = workers
        rows: dict[tuple[int, int, int, int], tuple[list[int], Values]] = {}
        parts: dict[_Whose, DigestPart] = {}
        for worker in workers:
            for values, part, digest in self._new(worker):
                key = (values.count, part.part, digest, values.progress)
                alike = rows.get(key)
                if alike is None:
                    rows[key] = ([worker.rank], values)
                else:
                    alike[0].append(worker.rank)
                self._note(part, parts)
        # In the order of looks: one that is complete ends the wait for those before it.
        every = [
            DigestRow(
                part=part, count=count, value=digest, ranks=tuple(ranks), step=first.step,
                at_ns=first.at_ns, progress=progress,
            )
            for (count, part, digest, progress), (ranks, first) in sorted(
                rows.items(), key=lambda row: row[0][0]
            )
        ]  # fmt: skip
        for at in range(0, len(every), _MOST_ROWS):
            event = e.DigestsRead(
                node_rank=self._node_rank(),
                rows=tuple(every[at : at + _MOST_ROWS]),
                parts=() if at else tuple(parts.values()),
            )
            self._report(self._attempt, event)
        closeups = list(self._close.told(self._node_rank()))
        for close in closeups:
            self._report(close.attempt, close)
        return bool(every or closeups)

    def _note(self, part: DigestPart, parts: dict[_Whose, DigestPart]) -> None:
        """Tell of a part that was not told of, or of more ranks or words for it."""
        whose = part.part, part.how, part.members
        known = self._told.get(whose)
        if known is not None:
            more = not all(rank in known.ranks for rank in part.ranks)
            more = more or not all(mark in known.marks for mark in part.marks)
            if not more:
                return
            ranks = tuple(sorted({*known.ranks, *part.ranks}))
            marks = tuple(dict.fromkeys([*known.marks, *part.marks]))
            part = replace(part, ranks=ranks, marks=marks)
        self._told[whose] = parts[whose] = part

    def _new(self, worker: Worker) -> Iterable[tuple[Values, DigestPart, int]]:
        """What it has looked at since the last time: with each part, and one number for it."""
        known = self._ranks.setdefault(worker.rank, _Rank())
        for one in worker.logs.digests.new():
            if isinstance(one, Answer):
                self._close.heard(worker.rank, one.content)
                continue
            if not isinstance(one, Values):
                number = int(one["plan"])
                known.plans[number] = parts_of(one, worker.rank)
                known.chain.plan(one)
                known.names[number] = [tensor[0] for tensor in one["tensors"]]
                continue
            doubt = known.chain.look(one)
            if doubt is not None:
                self._report(self._attempt, e.DoubtRaised(rank=worker.rank, doubt=doubt))
            known.keep(one)
            for part in known.plans.get(one.plan, ()):
                yield one, part.told, _folded([one.digests[place] for place in part.places])

    def obey(self, order: o.TellDigests | o.LookClosely | o.CertifyCheckpoint) -> None:
        """Do what `order` asks for."""
        if isinstance(order, o.TellDigests):
            self._tell(order)
        elif isinstance(order, o.LookClosely):
            self._look_closely(order)
        else:
            self._report(self._attempt, certified(order, self._node_rank()))

    def _look_closely(self, order: o.LookClosely) -> None:
        """Pass it on to the ranks; what they answer comes with their digests."""
        here = {worker.rank: worker for worker in self._workers}
        for rank in order.ranks if order.attempt == self._attempt else ():
            known, worker = self._ranks.get(rank), here.get(rank)
            if known is None or worker is None:
                continue
            at = known.place(order.part, order.name, None if order.buckets else order.count)
            self._close.ask(order, worker, at)
        for close in self._close.told(self._node_rank()):
            self._report(close.attempt, close)

    def _tell(self, order: o.TellDigests) -> None:
        """Answer with what is kept of each rank."""
        names: tuple[str, ...] = ()
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, known in self._ranks.items() if order.attempt == self._attempt else ():
            for look in known.kept:
                for part in known.plans.get(look.plan, ()):
                    if part.told.part == order.part and look.number == order.count:
                        names = tuple(known.names[look.plan][place] for place in part.places)
                        digests = tuple(map(look.at, part.places))
                        found.setdefault(digests, []).append(rank)
        answer = e.DigestsTold(
            node_rank=self._node_rank(),
            attempt=order.attempt,
            part=order.part,
            count=order.count,
            names=names,
            ranks=tuple(TensorDigests(ranks=tuple(r), values=v) for v, r in found.items()),
        )
        self._report(order.attempt, answer)


def certified(order: o.CertifyCheckpoint, node_rank: int) -> e.CheckpointCertified:
    """What came of writing it into the manifest."""
    why = ""
    try:
        checkpointdir.certify(Path(order.path), order.by)
    except ValueError as error:
        why = str(error)
    except OSError as error:
        why = error.strerror or str(error)
    return e.CheckpointCertified(node_rank=node_rank, step=order.step, path=order.path, why=why)


def parts_of(plan: dict[str, Any], rank: int) -> list[_Part]:
    """The parts of a plan as its rank wrote it: tensors by who should have them in common."""
    if plan["site"] in (AT_REST, LEFT):
        return []  # for the rank's comparison with itself
    groups = [(how, axis, tuple(members)) for how, axis, members in plan["groups"]]
    by_group: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    alone: list[tuple[int, tuple[str, str, tuple[int, ...]]]] = []
    for place, (_, _, _, mine, marks) in enumerate(plan["tensors"]):
        declared = [groups[at] for at in mine]
        if COLUMNS in marks:  # nothing follows from columns that differ where they should
            declared = [group for group in declared if group[0] not in ("sharded", "left")]
        for group in declared:
            if group[0] == "hand":
                alone.append((place, group))
            elif "cut" not in marks:
                by_group.setdefault(group, []).append(place)
        if not mine and "cut" not in marks:
            alone.append((place, ("learnt", "", ())))
    parts = [_part(plan, rank, group, places) for group, places in by_group.items()]
    return [*parts, *(_part(plan, rank, group, [place]) for place, group in alone)]


def _part(
    plan: dict[str, Any], rank: int, group: tuple[str, str, tuple[int, ...]], places: list[int]
) -> _Part:
    how, axis, members = group
    tensors = [plan["tensors"][place] for place in places]
    # What a program does by hand is known of some ranks before others: it makes no other part.
    who = "" if how in _ALONE else (how, axis, members)
    what = [[name, shape, dtype] for name, shape, dtype, *_ in tensors]
    identity = repr((plan["site"], plan["number"], plan["place"], who, what))
    digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
    single = len(tensors) == 1
    names = [tensor[0] for tensor in tensors]
    told = DigestPart(
        part=int.from_bytes(digest, "big") >> 4,
        site=plan["site"],
        how=how,
        name=names[0] if single else f"{names[0]} … {names[-1]}",
        tensors=len(tensors),
        ranks=(rank,),
        members=runs_of(members),
        axis=axis,
        place=plan["place"],
        marks=tuple(tensors[0][4]) if single else (),
        shape=tuple(tensors[0][1]) if single else (),
        clock=int(plan.get("clock", -1)),
    )
    return _Part(told, tuple(places))


def _folded(digests: Sequence[int]) -> int:
    if len(digests) == 1:
        return digests[0]
    packed = struct.pack(f"={len(digests)}Q", *digests)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "big")
