"""What is found of the one tensor that ranks have other bits in: the sums of its rows at the look
that has shown it, then the words of the rows that differ, as they are a little later.

Ranks are asked for the first as soon as the tensor is known, for the second once the rows are.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.digest.layout import Layout, Shape
from harness.digest.locate import Damage, locate, numbers
from harness.observations import LookedClosely
from harness.orders import LookClosely

MOST_BUCKETS = 8
"""Whose words are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Of one rank, at the look that has shown the difference; `columns` may be empty."""

    rows: Sequence[int]
    columns: Sequence[int]


@dataclass(slots=True)
class Closely:
    name: str = ""
    """Of the tensor; empty while it was not asked for."""
    ranks: tuple[int, ...] = ()
    """One of each class, those of the largest class first."""
    asked_ns: int = 0
    words_asked: bool = False
    shape: Shape | None = None
    sums: dict[int, Sums] = field(default_factory=dict)
    buckets: tuple[int, ...] = ()
    """Whose words were asked for."""
    words: dict[int, dict[int, Sequence[int]]] = field(default_factory=dict)
    """By look, then by rank: the words of the buckets, one after the other."""
    referee: bool = False
    """Whether a third place was asked to judge."""
    judged: dict[int, str] = field(default_factory=dict)
    """By rank: whether an update of these words was right or wrong, or that it is unknown."""
    mute: set[int] = field(default_factory=set)
    """Ranks that have nothing to tell."""
    ref: tuple[str, int] | None = None
    """Source and number of the newest record that told of it."""

    def ordered(self, order: LookClosely, at_ns: int) -> None:
        self.name, self.ranks = order.name, order.ranks
        self.asked_ns = self.asked_ns or at_ns
        if order.buckets:
            self.words_asked, self.buckets = True, order.buckets
            self.referee = order.referee

    def heard(self, event: LookedClosely, ref: tuple[str, int]) -> None:
        if event.name != self.name:
            return
        self.ref = ref
        if event.shape is not None:
            self.shape = Shape(
                name=event.name, dtype=event.shape.dtype, item=event.shape.item,
                lengths=event.shape.lengths, strides=event.shape.strides,
            )  # fmt: skip
        for told in event.sums:
            if told.why:
                self.mute.update(told.ranks)
            elif told.rows and event.count == event.suspect:
                sums = Sums(rows=unpacked(told.rows), columns=unpacked(told.columns))
                self.sums.update(dict.fromkeys(told.ranks, sums))
            elif told.words and event.buckets == self.buckets:
                words = unpacked(told.words)
                self.words.setdefault(event.count, {}).update(dict.fromkeys(told.ranks, words))
                for rank in told.ranks if told.referee else ():
                    if self.judged.get(rank) != "wrong":
                        self.judged[rank] = told.referee

    @property
    def all_sums(self) -> bool:
        return bool(self.ranks) and all(rank in self.sums for rank in self.ranks)

    @property
    def damage(self) -> Damage | None:
        """Between the first rank, of most replicas, and the second; None where it is not known."""
        if len(self.ranks) < 2 or not self.all_sums:
            return None
        good, bad = (self.sums[rank] for rank in self.ranks[:2])
        both = bool(good.columns) and bool(bad.columns)
        columns = (good.columns, bad.columns) if both else ((), ())
        try:
            return locate(good.rows, bad.rows, *columns)
        except ValueError:
            return None

    @property
    def layout(self) -> Layout | None:
        return None if self.shape is None else Layout([self.shape])

    @property
    def read(self) -> int | None:
        """The first look at which the words of all ranks are known."""
        whole = [at for at, words in self.words.items() if all(r in words for r in self.ranks)]
        return min(whole, default=None)

    @property
    def waits(self) -> bool:
        """Whether an answer may still come."""
        if not self.asked_ns or self.mute:
            return False
        if not self.words_asked:
            return not self.all_sums
        unjudged = self.referee and not all(rank in self.judged for rank in self.ranks)
        return self.read is None or unjudged


def unpacked(text: str) -> Sequence[int]:
    """Numbers as ranks tell them; none where the text is none of theirs."""
    try:
        return numbers(base64.b64decode(text, validate=True))
    except ValueError:
        return ()
