"""What the members of a process group wait for each other: in long streaks for the same ones, or
now for one and now for another.

Rounds are added up to slices of time that can be compared, however many collectives a step has.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from math import log2
from statistics import mean, median

LEAST_NS = 50_000_000
"""Waiting for less in a slice is noise."""
LEAST_SHARE = 0.3
"""Of a slice's time."""
_SLICE_NS = 250_000_000
_LONGEST_SLICE_NS = 30_000_000_000
_KEPT_RATE = 0.75
"""A streak ends when fewer of its slices show the same ranks."""
_FEWEST_HITS = 12
_FEWEST_UNEVEN = 18
"""Where delays are of all sizes: a busy neighbour comes and goes."""
_WORK_SHARE = 0.3
"""Of the work of all must be done in the rounds that somebody holds up. Who keeps the others
waiting while they have nothing to do has a duty of its own: it loads or evaluates for all. Unless
nobody was waited for there before: what is slow between the gradients and the loss, say, where
there is little to do."""
_FEWEST_BEFORE = 16
_SELDOM = 0.25
_ALWAYS = 0.8
"""Of one call's rounds: how many must have been seen before, with what share of waits at most, and
what share must be held up since. A duty is there from the start, or now and then."""
_MOST_COUNTED = 512
"""Different calls and gaps: where sizes vary, no call is seen often, and all is counted anew."""
_CHANCE_BITS = 28.0
"""That one of n ranks is the last so often in a row by chance must be as unlikely as that many
tossed coins alike: streaks begin several times a second, for days."""
_EVEN = 0.25
"""Standard deviation over mean of what is waited in a slice: random delays have about 1."""
_HIT_SHARE = 0.8
_LEAST_SPAN_NS = 3_000_000_000
_FEWEST_PAUSES = 10
_MOST_OF_ONE = 0.7
_UNEVEN = 0.18
"""Mean deviation of pauses from their median, of which random delays have two to three times as
much."""
_APART = 3
"""A pause is so many times as long as what else is waited."""
_PAUSE_SHARE = 0.15
_MOST_ROUNDS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a round cost: `ranks` came last by `gap_ns`, empty when nobody did by its own doing."""

    seq: int
    at_ns: int
    length_ns: int
    ranks: tuple[int, ...]
    gap_ns: int
    work_ns: int
    """What the members that were in time took themselves, in the middle."""
    call: str = ""
    """Operation, numbers of elements, types: rounds of one call are taken for one line of code."""


Rounds = Counter[tuple[str, int]]
"""How many rounds of which call were held up for how long: the binary digits of `gap_ns`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """Rounds that the same ranks held up."""

    waited_ns: int = 0
    rounds: int = 0
    work_ns: int = 0
    first_seq: int = 0
    first_ns: int = 0
    call: str = ""
    """Of the round that was held up longest, and for how long."""
    longest_ns: int = 0


@dataclass(slots=True)
class Slice:
    """Rounds in a row."""

    length_ns: int = 0
    work_ns: int = 0
    counted: Rounds = field(default_factory=Counter)
    waited: dict[tuple[int, ...], Waited] = field(default_factory=dict)
    """By late ranks."""


@dataclass(slots=True)
class Streak:
    """Slices in which the others waited for the same ranks."""

    ranks: tuple[int, ...]
    first_seq: int
    first_ns: int
    before: int
    """Rounds judged before it."""
    slices: int = 0
    hits: int = 0
    length_ns: int = 0
    waited_ns: int = 0
    last_ns: int = 0
    rounds: int = 0
    """In which they were waited for."""
    work_ns: int = 0
    """What the others took themselves in those rounds, and in all of them."""
    all_work_ns: int = 0
    squares: float = 0.0
    """Sum of the squares of what was waited in each slice, seconds."""
    counted: Rounds = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    """Nanoseconds waited, each slice's at the call that was held up longest."""
    new: bool = False
    """Whether nobody was waited for where these are since."""

    @property
    def call(self) -> str:
        """Where most was waited; empty when nobody knows."""
        return max(self.calls, key=lambda call: self.calls[call], default="")

    @property
    def even(self) -> bool:
        """Whether about the same was waited in every slice with a wait."""
        average = self.waited_ns / 1e9 / max(1, self.hits)
        spread = max(0.0, self.squares / max(1, self.hits) - average**2)
        return spread <= (_EVEN * average) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Now one member was waited for, now another, each time about as long."""

    counts: dict[int, int]
    """Pauses by rank."""
    usual_ns: int
    """Median length of a pause."""
    waited_ns: int
    length_ns: int
    """All the time in which this happened."""
    first_seq: int
    first_ns: int
    before: int
    """Rounds judged before it."""


@dataclass(slots=True)
class Waits:
    """Of one group of `members` ranks, whose clocks may be `slack_ns` apart."""

    members: int
    slack_ns: int = 0
    rounds: int = 0
    """Judged so far."""
    newest: deque[Wait] = field(default_factory=lambda: deque(maxlen=_MOST_ROUNDS))
    slice: Slice = field(default_factory=Slice)
    counted: Rounds = field(default_factory=Counter)
    """In all slices but those of `streak`."""
    streak: Streak | None = None
    turns: Turns | None = None

    @property
    def suspect(self) -> bool:
        """Whether there is something to tell."""
        return self.turns is not None or self.long_streak is not None

    @property
    def long_streak(self) -> Streak | None:
        """The streak that chance does not explain. Of few ranks one is last often, of many seldom;
        and random delays are never alike, as those of a slower rank are."""
        streak = self.streak
        if (
            streak is None
            or streak.hits < _HIT_SHARE * streak.slices
            or streak.last_ns - streak.first_ns < _LEAST_SPAN_NS
            or (streak.work_ns < _WORK_SHARE * streak.all_work_ns and not streak.new)
        ):
            return None
        fewest = _FEWEST_HITS
        if not streak.even:
            fewest = max(_FEWEST_UNEVEN, int(_CHANCE_BITS / log2(self.members)))
        return streak if streak.hits >= fewest else None


def add(waits: Waits, wait: Wait, step_ns: int) -> None:
    """A round has ended; a slice holds most of a step, where steps are known to take `step_ns`."""
    waits.rounds += 1
    waits.newest.append(wait)
    part = waits.slice
    part.length_ns += wait.length_ns
    part.work_ns += wait.work_ns
    part.counted[wait.call, wait.gap_ns.bit_length()] += 1
    if wait.ranks and wait.gap_ns >= LEAST_SHARE * wait.length_ns:
        so_far = part.waited.get(wait.ranks, Waited(first_seq=wait.seq, first_ns=wait.at_ns))
        part.waited[wait.ranks] = replace(
            so_far,
            waited_ns=so_far.waited_ns + wait.gap_ns,
            rounds=so_far.rounds + 1,
            work_ns=so_far.work_ns + wait.work_ns,
            call=wait.call if wait.gap_ns > so_far.longest_ns else so_far.call,
            longest_ns=max(wait.gap_ns, so_far.longest_ns),
        )
    if part.length_ns >= max(_SLICE_NS, min(int(0.8 * step_ns), _LONGEST_SLICE_NS)):
        waits.slice = Slice()
        if _close(waits, part, wait.at_ns):
            waits.turns = _turns(waits)


def _close(waits: Waits, part: Slice, at_ns: int) -> bool:
    """A slice has ended: does it go on with the streak? Returns whether anybody was waited for."""
    ranks = max(part.waited, key=lambda late: part.waited[late].waited_ns, default=())
    what = part.waited.get(ranks, Waited())
    # Where they were as often kept waiting themselves, nothing would be won without them.
    others_ns = sum(w.waited_ns for late, w in part.waited.items() if not {*late} & {*ranks})
    least_ns = max(LEAST_NS + waits.slack_ns, LEAST_SHARE * part.length_ns)
    if what.waited_ns - others_ns < least_ns:
        ranks = ()
    streak = waits.streak
    if streak is not None:
        hits = streak.hits + (streak.ranks == ranks)
        if hits < _KEPT_RATE * (streak.slices + 1):
            if not streak.new:  # else what interrupts it would make what is wrong the usual
                _count(waits.counted, streak.counted)
            streak = waits.streak = None
    if streak is None:
        if not ranks:
            _count(waits.counted, part.counted)
            return False
        streak = waits.streak = Streak(
            ranks=ranks,
            first_seq=what.first_seq,
            first_ns=what.first_ns,
            before=waits.rounds - what.rounds,
        )
    streak.slices += 1
    streak.length_ns += part.length_ns
    streak.all_work_ns += part.work_ns
    streak.last_ns = at_ns
    _count(streak.counted, part.counted)
    if streak.ranks == ranks:
        streak.hits += 1
        streak.rounds += what.rounds
        streak.waited_ns += what.waited_ns
        streak.work_ns += what.work_ns
        streak.squares += (what.waited_ns / 1e9) ** 2
        streak.calls[what.call] += what.waited_ns
        if len(streak.calls) > _MOST_COUNTED:
            streak.calls.clear()
    streak.new = _is_new(waits.counted, streak)
    return bool(ranks)


def _count(counted: Rounds, more: Rounds) -> None:
    counted.update(more)
    if len(counted) > _MOST_COUNTED:
        counted.clear()


def _is_new(before: Rounds, streak: Streak) -> bool:
    """Whether all came together to the call that is held up now, at least within half of what is
    waited there."""
    call = streak.call
    much = (streak.waited_ns // max(1, 2 * streak.rounds)).bit_length()
    then, then_late = _of_call(before, call, much)
    since, since_late = _of_call(streak.counted, call, much)
    return (
        then >= _FEWEST_BEFORE and then_late <= _SELDOM * then and since_late >= _ALWAYS * since > 0
    )


def _of_call(counted: Rounds, call: str, much: int) -> tuple[int, int]:
    """Rounds of `call`, and those held up for `much` binary digits or more."""
    mine = [(bits, rounds) for (which, bits), rounds in counted.items() if which == call]
    return sum(n for _, n in mine), sum(n for bits, n in mine if bits >= much)


def _turns(waits: Waits) -> Turns | None:
    """Pauses of several members, each as long as the other and far longer than what is usual.

    Random delays are of all sizes; and both halves must show the same ranks, so that none is
    left out.
    """
    newest = list(waits.newest)
    pauses = [wait for wait in newest if _is_pause(wait, waits.slack_ns)]
    if len(pauses) < _FEWEST_PAUSES:
        return None
    begin = newest.index(pauses[0])
    counts = Counter(wait.ranks[0] for wait in pauses)
    half = len(pauses) // 2
    early, late = ({wait.ranks[0] for wait in part} for part in (pauses[:half], pauses[half:]))
    turns = Turns(
        counts=dict(sorted(counts.items())),
        usual_ns=int(median(wait.gap_ns for wait in pauses)),
        waited_ns=sum(wait.gap_ns for wait in pauses),
        length_ns=sum(wait.length_ns for wait in newest[begin:]),
        first_seq=pauses[0].seq,
        first_ns=pauses[0].at_ns,
        before=waits.rounds - len(newest) + begin,
    )
    rest = sorted(w.gap_ns for w in newest[begin:] if not _is_pause(w, waits.slack_ns))
    uneven = mean(abs(wait.gap_ns - turns.usual_ns) for wait in pauses)
    believed = (
        len(counts) > 1
        and early == late
        and max(counts.values()) <= _MOST_OF_ONE * len(pauses)
        and turns.waited_ns >= _PAUSE_SHARE * turns.length_ns
        and turns.length_ns >= _LEAST_SPAN_NS
        and uneven <= _UNEVEN * turns.usual_ns
        and (not rest or rest[int(0.9 * (len(rest) - 1))] * _APART <= turns.usual_ns)
    )
    return turns if believed else None


def _is_pause(wait: Wait, slack_ns: int) -> bool:
    return (
        len(wait.ranks) == 1
        and wait.gap_ns >= LEAST_NS + slack_ns
        and wait.gap_ns >= LEAST_SHARE * wait.length_ns
    )
