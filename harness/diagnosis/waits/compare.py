"""Which of several ranks did something else than the others, and what: by their number, by other
groups of the same role, by what used to follow what."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from harness.diagnosis.waits.record import Call, Group, Step, Track, Waits, end_of

_LATE = 16
"""The last steps of a program, where a deviation that led to a hang is looked for."""
_LONGEST = 16
"""Calls in a row that are compared with earlier ones."""
_EXAMPLES = 3
"""That are called a habit."""
_ROUNDS, _CONTEXT = 2, 3
"""Of several ranks that all went on as in earlier rounds but one: how many rounds each must have on
record, and how many calls in a row, the present one included, must be new."""
_T = TypeVar("_T")


def odd_ones(calls: Mapping[int, Call]) -> tuple[list[int], Call | None]:
    """Ranks whose call is not that of the majority, and the majority's call.

    Without a majority all ranks, and None.
    """
    counts = Counter(calls.values())
    (usual, most), *others = counts.most_common()
    if not others or others[0][1] == most or most < 2:
        return sorted(calls), None
    return sorted(rank for rank, call in calls.items() if call != usual), usual


def odd_by_replicas(
    waits: Waits, group: Group, seq: int, calls: Mapping[int, Call]
) -> tuple[list[int], Call | None]:
    """As `odd_ones`, for members that other groups of the same role can tell apart: the call that
    most of those made at this place is the usual one."""
    elsewhere: Counter[Call] = Counter()
    for rank, wait in waits.ranks.items():
        if rank in calls:
            continue
        for other, track in wait.tracks.items():
            if other != group and other.desc == group.desc and _size(other) == _size(group):
                call = track.at(seq)
                if call is not None:
                    elsewhere[call] += 1
    ranking = elsewhere.most_common(2)
    if not ranking or (len(ranking) > 1 and ranking[0][1] == ranking[1][1]):
        return sorted(calls), None
    usual = ranking[0][0]
    odd = sorted(rank for rank, call in calls.items() if call != usual)
    return (odd, usual) if 0 < len(odd) < len(calls) else (sorted(calls), None)


def odd_by_condition(waits: Waits, calls: Mapping[int, Call]) -> tuple[list[int], Call | None]:
    """As `odd_ones`: of two sides, the one that stands below a condition on the rank (`if rank ==
    0:`) called what the other side never comes to."""
    apart = {rank for rank in calls if (wait := waits.ranks.get(rank)) and wait.apart}
    others = {calls[rank] for rank in calls.keys() - apart}
    if apart and len(others) == 1 and not others & {calls[rank] for rank in apart}:
        return sorted(apart), others.pop()
    return sorted(calls), None


def odd_by_history(
    waits: Waits, group: Group, seq: int, calls: Mapping[int, Call]
) -> tuple[list[int], Call | None]:
    """As `odd_ones`: the usual call is the one that followed the call before it in earlier rounds;
    of what shape or type it was, or which operation at all where nobody had made the other call."""
    tracks = {rank: waits.ranks[rank].tracks.get(group, Track()) for rank in calls}
    histories = {rank: _until(track, seq) for rank, track in tracks.items()}
    odd = new_steps(histories)
    usual = {call for rank, call in calls.items() if rank not in odd}
    if not odd or len(usual) != 1:
        return sorted(calls), None
    known = {call for history in histories.values() for call in history[:-1]}
    if len({call.op for call in calls.values()}) > 1 and any(calls[r] in known for r in odd):
        return sorted(calls), None
    return odd, usual.pop()


def _until(track: Track, seq: int) -> list[Call]:
    known = track.calls[: max(0, seq - track.first + 1)]
    return [call for call in known if call is not None]


def new_steps(histories: Mapping[int, Sequence[object]]) -> list[int]:
    """Ranks whose last step, from one call to the next, has no example in what all ranks did
    before; else, in a row of equal calls, those that did not do what was foretold, where all
    others did. Empty where that tells nobody apart."""
    before = {step for calls in histories.values() for step in pairwise(calls[:-1])}
    new = sorted(rank for rank, calls in histories.items() if tuple(calls[-2:]) not in before)
    if new:
        return new if len(new) < len(histories) else []
    told = {rank: foretold(calls[:-1]) for rank, calls in histories.items()}
    odd = sorted(rank for rank, calls in histories.items() if told[rank] != calls[-1])
    return odd if len(odd) < len(histories) and None not in told.values() else []


def foretold(history: Sequence[_T], examples: int = _EXAMPLES) -> _T | None:
    """The next call, going by what always followed the last ones: as many of them as there were
    `examples` of. None where what followed varied, or examples are few."""
    for length in range(_LONGEST, 0, -1):
        now = tuple(history[-length:])
        after = [run[-1] for run in _runs(history, length + 1) if run[:-1] == now]
        if len(after) >= examples:
            return after[0] if len(set(after)) == 1 else None
    return None


def _runs(calls: Sequence[_T], length: int) -> Iterator[tuple[_T, ...]]:
    """All rows of so many calls."""
    return (tuple(calls[at : at + length]) for at in range(len(calls) - length + 1))


def _size(group: Group) -> int:
    return len(group.ranks or ())


def strange_step(waits: Waits, suspects: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Suspects that lately made a step from one call to the next that nobody else makes and they
    themselves never made before; each with the two calls in words."""
    suspected = set(suspects)
    programs = {rank: waits.ranks[rank].program for rank in suspected if rank in waits.ranks}
    # Thousands of ranks have one and the same program: it is compared once.
    alike = {id(program): program for program in programs.values()}
    known: set[tuple[object, object]] = set()
    seen: set[int] = set()
    for rank, wait in waits.ranks.items():
        if rank not in suspected and id(wait.program) not in seen:
            seen.add(id(wait.program))
            known.update(pairwise(wait.program))
    for program in alike.values():
        known.update(pairwise(program[:-_LATE]))
    strange = {}
    for number, program in alike.items():
        for before, after in pairwise(program[-_LATE - 1 :]):
            if (before, after) not in known:
                strange[number] = (_text(before), _text(after))
                break
    return {rank: strange[id(it)] for rank, it in programs.items() if id(it) in strange}


def off_course(waits: Waits, suspects: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Suspects that wait in something else than what always followed what they did before, where
    all others of them wait in just that; each with the call that should have come and the one that
    came, in words. Empty where that cannot be said of one of them.

    Nor where one is at something new, a part of the program that comes only now, or at what has
    followed at times: others may have left that out. So two rounds of each are enough. What always
    came after as many others as before comes at no other time.
    """
    courses = {rank: waits.ranks[rank].course for rank in suspects if rank in waits.ranks}
    astray = _sent_astray(courses)
    if astray:
        return astray
    found = {}
    for rank, steps in courses.items():
        before = steps[:-1]
        expected = foretold(before, examples=_ROUNDS) if steps else None
        if expected is None or steps[-1] not in before:
            return {}
        if expected != steps[-1]:
            if tuple(steps[-_CONTEXT:]) in _runs(before, _CONTEXT) and not _out_of_time(steps):
                return {}
            found[rank] = (_text(expected), _text(steps[-1]))
    return found


def _out_of_time(steps: Sequence[Step]) -> bool:
    """Whether the last step comes after more or fewer others than it always did."""
    places = [at for at, step in enumerate(steps) if step == steps[-1]]
    *apart, now = [after - before for before, after in pairwise(places)] or [0]
    return len(apart) >= _EXAMPLES and len(set(apart)) == 1 and now != apart[0]


def _sent_astray(courses: Mapping[int, Sequence[Step]]) -> dict[int, tuple[str, str]]:
    """Of more than two: the one whose message goes to, or is to come from, a rank that it has never
    had such a one with, while the rank that it always had one with then waits for it."""
    found = {}
    for rank, steps in courses.items():
        expected = foretold(steps[:-1], examples=_ROUNDS) if steps else None
        if expected is None or steps[-1] in steps[:-1]:
            continue
        (peer, call), now = expected, steps[-1][1]
        turned = {"send": "recv", "recv": "send"}.get(call.op)
        if turned is None or now != call:
            continue
        other = next((courses[r][-1:] for r in courses if peer == end_of(r)), ())
        if tuple(other) == ((end_of(rank), replace(call, op=turned)),):
            found[rank] = (_text(expected), _text(steps[-1]))
    return found if len(found) == 1 and len(courses) > 2 else {}


_AT_THE_OTHER_END = {"send": "to", "recv": "from"}


def _text(step: tuple[str, Call]) -> str:
    return f"{step[1].text} {_AT_THE_OTHER_END.get(step[1].op, 'on')} {step[0]}"


def how_it_differs(odd: Track, usual: Track, seq: int) -> str:
    """skipped, extra, order, op, shape or dtype: what `odd` did at `seq` where `usual` is right."""
    here, expected = odd.at(seq), usual.at(seq)
    assert here is not None
    assert expected is not None
    if odd.at(seq + 1) == expected and usual.at(seq + 1) == here and here != expected:
        return "order"
    if here.op == expected.op and usual.at(seq - 1) == expected == odd.at(seq - 1):
        # In a row of equal calls nothing moves when one is left out: only the shape differs.
        return "shape" if here.sizes != expected.sizes else "dtype"
    if _shifted(odd, usual, seq, ahead=0, behind=1):
        return "skipped"
    if _shifted(odd, usual, seq, ahead=1, behind=0):
        return "extra"
    if here.op != expected.op:
        return "op"
    return "shape" if here.sizes != expected.sizes else "dtype"


def _shifted(odd: Track, usual: Track, seq: int, *, ahead: int, behind: int) -> bool:
    """Whether the two agree from `seq` on when one of them is moved by one place."""
    compared = 0
    for step in range(64):
        mine, theirs = odd.at(seq + ahead + step), usual.at(seq + behind + step)
        if mine is None or theirs is None:
            break
        if mine != theirs:
            return False
        compared += 1
    return compared > 0


def follows(track: Track, expected: Call, here: Call, until: int) -> bool:
    """Whether `here` is what followed `expected` in all earlier rounds of the track."""
    history = [call for call in track.calls[: max(0, until - track.first)] if call is not None]
    after = {second for first, second in pairwise(history) if first == expected}
    return after == {here}
