"""Where in a tensor ranks differ: elements, bits and values, in words.

Sums of rows and columns are those of the look that has shown the difference. Words are read a
little later, at one look of all ranks that are asked: a step may have written to the tensor
meanwhile, and then it is said.
"""

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.digest.layout import WIDTH, WORD, Layout
from harness.state.closely import MOST_BUCKETS, Closely
from harness.state.replicas import COLUMNS, Suspicion, changed_at_rest
from harness.topology import ranks_name

READ_AGAIN = ("parameters", "optimizer state", "variables")
"""Sites whose tensors are still there a step later."""
FEW_SHARE = 0.1
"""Of the tensors of a part: as many as a fault of a device may have damaged."""
_LEAST_WAIT_NS = 3_000_000_000
_REFEREE_NS = 27_000_000_000
"""More for a process that has to import torch first."""
_LONGEST_WAIT_NS = 60_000_000_000
_STEPS = 4
"""That answers may take: a rank answers between two steps."""
_STRIDE_NS = 500_000_000
"""Time between looks at which words are told, so that all ranks have heard that they should."""
_MOST_STRIDE = 1 << 12
_FLOATS = {"float64": "<d", "float32": "<f", "float16": "<e"}
_MASK = (1 << 64) - 1


def differing(known: Suspicion) -> tuple[str, ...]:
    """The tensors that are not the same on all ranks that were asked; none: it is not known."""
    if known.track.single:
        return (known.track.part.name,)
    rows = [values for rank, values in known.told.items() if rank in known.group]
    if len(rows) < 2 or len({len(values) for values in rows}) > 1:
        return ()
    differ = [len(set(column)) > 1 for column in zip(*rows, strict=True)]
    return tuple(name for name, yes in zip(known.names, differ, strict=False) if yes)


def few(names: Sequence[str], total: int) -> bool:
    """Whether so many of `total` tensors may be the damage of one device."""
    return len(names) <= max(1, int(FEW_SHARE * total))


def tensor_of(known: Suspicion) -> str:
    """The one to look at closely; empty where there is none, or it is not known yet."""
    if known.kind != "split" or COLUMNS in known.track.part.marks:
        return ""
    names = differing(known)
    return names[0] if names and few(names, known.track.part.tensors) else ""


def ranks_of(known: Suspicion) -> tuple[int, ...]:
    """One rank of each class, those of the largest class first."""
    classes = [ranks & known.group for ranks in known.at.classes if ranks & known.group]
    return tuple(min(ranks) for ranks in sorted(classes, key=lambda each: (-len(each), min(each))))


def needs_referee(known: Suspicion) -> bool:
    """Whether two differ, and neither accuses itself."""
    if len(known.group) != 2 or known.track.part.site != "parameters":
        return False
    return not changed_at_rest(known.track, known.before, known.at, known.group)


def step_ns(known: Suspicion) -> int:
    """How long a step, or a turn of the program, takes."""
    first, last = known.track.first, known.track.last
    if first is None or last is None or last.count <= first.count:
        return 0
    turns = (last.count - first.count) / (2 if known.track.part.site == "parameters" else 1)
    return int((last.at_ns - first.at_ns) / max(1.0, turns))


def stride(known: Suspicion) -> int:
    """Steps between the looks at which words are told."""
    found = 1
    while found * step_ns(known) < _STRIDE_NS and found < _MOST_STRIDE:
        found *= 2
    return found


def until_ns(known: Suspicion) -> int:
    """Until when answers are waited for; 0: for none."""
    if not known.close.waits:
        return 0
    least = _LEAST_WAIT_NS + (_REFEREE_NS if needs_referee(known) else 0)
    wait = max(least, _STEPS * step_ns(known))
    return known.close.asked_ns + min(wait, _LONGEST_WAIT_NS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Element:
    """One that differs: coordinates, changed bits, and what it is on either side."""

    at: tuple[int, ...]
    bits: tuple[int, ...]
    good: str
    bad: str


def told(known: Suspicion, others: Sequence[Suspicion] = ()) -> tuple[str, str]:
    """Where it is, and how that is known; empty texts where it was not found.

    Of a gradient, which is gone, the parameter of the same name among `others` may tell more.
    """
    close = known.close
    found = _from_words(known, close) or _from_sums(known, close)
    if close.read is None and known.track.part.site not in READ_AGAIN:
        for other in others:
            if other is not known and other.close.name == close.name and other.close.read:
                where, how = _from_words(other, other.close) or ("", "")
                if where:
                    return f"its parameter {where}", how
    return found or ("", "")


def _from_words(known: Suspicion, close: Closely) -> tuple[str, str] | None:
    layout, read = close.layout, close.read
    if layout is None or read is None:
        return None
    good, bad = (close.words[read][rank] for rank in close.ranks[:2])
    found = _elements(layout, close.buckets, good, bad)
    when = _look_text(known, read)
    if not found:
        return None
    odd, most = _who(known, close)
    first = found[0]
    many = "" if len(found) == 1 else f"{_pattern(layout, found)}; the first, "
    bits = f"bit{'' if len(first.bits) == 1 else 's'} {_bits_text(first.bits)}"
    where = (
        f"{many}{_place(first.at)} {bits}: {odd} {'have' if odd.startswith('ranks') else 'has'}"
        f" {first.bad}, {most} {first.good}"
    )
    damage = close.damage
    more = 0 if damage is None else len(damage.buckets) - MOST_BUCKETS
    rest = f"; {more} more pieces of 16 KiB differ and were not read" if more > 0 else ""
    then = _look_text(known, known.at.count)
    how = f"values and bits are those {when}: the tensor has moved on since it was suspected {then}"
    return where, f"{how}{rest}"


def _from_sums(known: Suspicion, close: Closely) -> tuple[str, str] | None:
    layout, damage = close.layout, close.damage
    if layout is None or damage is None or not damage.buckets:
        return None
    how = f"found by its sums {_look_text(known, known.at.count)}; its values were not read"
    exact = [
        (word, at)
        for word in damage.words
        if (at := layout.element(word.bucket, word.column, _low(word.delta)))
    ]
    if exact:
        word, (_, place, bit) = exact[0]
        more = f" and {len(exact) - 1} more" if len(exact) > 1 else ""
        what = f"bit {bit}" if _single(word.delta) else f"from bit {bit} on"
        return f"{_place(place)} {what}{more}", how
    first, last = damage.buckets[0], damage.buckets[-1]
    begin, end = layout.element(first, 0, 0), _last(layout, last)
    if begin is None:
        return None
    within = f"somewhere from {_place(begin[1])} to {_place(end)}"
    if len(damage.buckets) > 1:
        return f"{within}, in {len(damage.buckets)} pieces of 16 KiB", how
    return within, how


def _elements(
    layout: Layout, buckets: Sequence[int], good: Sequence[int], bad: Sequence[int]
) -> list[_Element]:
    """Those that differ, in the order of memory."""
    found: dict[tuple[int, ...], list[int]] = {}
    values: dict[tuple[int, ...], tuple[str, str]] = {}
    if len(good) != len(bad):
        return []
    shape = layout.shapes[0]
    for at, (left, right) in enumerate(zip(good, bad, strict=True)):
        if left == right or at // WIDTH >= len(buckets):
            continue
        changed = (left ^ right) & _MASK
        for bit in range(64):
            if not changed >> bit & 1:
                continue
            place = layout.element(buckets[at // WIDTH], at % WIDTH, bit)
            if place is None:
                continue
            _, element, within = place
            found.setdefault(element, []).append(within)
            if element not in values:
                inside = bit // 8 // shape.item * shape.item if shape.item <= WORD else 0
                values[element] = (
                    number(left & _MASK, inside, shape.item, shape.dtype),
                    number(right & _MASK, inside, shape.item, shape.dtype),
                )
    return [
        _Element(at=at, bits=tuple(bits), good=values[at][0], bad=values[at][1])
        for at, bits in found.items()
    ]


def number(word: int, byte: int, item: int, dtype: str) -> str:
    """The element of `item` bytes from `byte` on of a word, as a person writes it; its bits where
    Python has no such type."""
    size = min(item, WORD)
    raw = word.to_bytes(WORD, "little")[byte : byte + size]
    if dtype in _FLOATS:
        return f"{struct.unpack(_FLOATS[dtype], raw)[0]:.6g}"
    if dtype == "bfloat16":
        return f"{struct.unpack('<f', bytes(2) + raw)[0]:.4g}"
    if dtype.startswith("int"):
        return str(int.from_bytes(raw, "little", signed=True))
    return f"0x{int.from_bytes(raw, 'little'):0{2 * size}x}"


def _pattern(layout: Layout, found: Sequence[_Element]) -> str:
    """Several elements in words."""
    lengths = layout.shapes[0].lengths
    rows = {element.at[0] for element in found if element.at}
    inner = 1
    for length in lengths[1:]:
        inner *= length
    if len(lengths) > 1 and len(found) == len(rows) * inner:
        first, last = min(rows), max(rows)
        if len(rows) == 1:
            return f"the whole row {first}"
        if last - first + 1 == len(rows):
            return f"all of rows {first} to {last}"
    flat = sorted(_flat(element.at, lengths) for element in found)
    steps = {b - a for a, b in itertools.pairwise(flat)}
    spread = f", {min(steps)} apart" if len(steps) == 1 and steps != {1} and len(flat) > 2 else ""
    return f"{len(found)} elements from {_place(found[0].at)} to {_place(found[-1].at)}{spread}"


def _flat(at: Sequence[int], lengths: Sequence[int]) -> int:
    place = 0
    for index, length in zip(at, lengths, strict=True):
        place = place * length + index
    return place


def _who(known: Suspicion, close: Closely) -> tuple[str, str]:
    """The odd ones and the others, by the look that has shown it."""
    sides: Mapping[int, frozenset[int]] = {
        rank: next(ranks & known.group for ranks in known.at.classes if rank in ranks)
        for rank in close.ranks[:2]
    }
    most, odd = (ranks_name(sorted(sides[rank])) for rank in close.ranks[:2])
    return odd, most


def _look_text(known: Suspicion, count: int) -> str:
    if known.track.part.site == "parameters":
        return f"at the {'begin' if count % 2 == 0 else 'end'} of step {count // 2}"
    if known.track.part.site == "variables":
        return f"at call {count}"
    return f"after step {count}"


def _place(at: Sequence[int]) -> str:
    return f"[{', '.join(map(str, at))}]"


def _bits_text(bits: Sequence[int]) -> str:
    shown = ", ".join(map(str, bits[:4]))
    return shown if len(bits) <= 4 else f"{shown} and {len(bits) - 4} more"


def _last(layout: Layout, bucket: int) -> tuple[int, ...]:
    """The last element that has a byte in the bucket."""
    shape = layout.shapes[0]
    byte = min((bucket + 1) * WIDTH * WORD, shape.nbytes) - 1
    place = layout.element(byte // WORD // WIDTH, byte // WORD % WIDTH, byte % WORD * 8)
    return () if place is None else place[1]


def _low(delta: int) -> int:
    """The lowest bit that differs."""
    return (delta & -delta).bit_length() - 1


def _single(delta: int) -> bool:
    """Whether one bit that flipped explains the difference."""
    size = min(delta, (1 << 64) - delta)
    return size & (size - 1) == 0
