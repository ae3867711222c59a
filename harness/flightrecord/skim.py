"""The digest of a pickle without making all its values.

Entries of a record are alike: the same keys in the same order, texts by reference. The first ones
are unpickled; of a further one a pattern of its bytes is made, and the rest is matched against the
patterns: only the bytes of a few fields are looked at. What matches no pattern, or is pending, is
read in full. Records that are not alike inside are left to `untrusted`, and so is everything that
is wrong with a pickle.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from harness.flightrecord.digest import Digest
from harness.flightrecord.pattern import Meaning, Pattern
from harness.flightrecord.plain import DICT, LISTED, LONG1, MARK, PUTS, Machine, NotPlain, Op
from harness.flightrecord.scan import Scan
from harness.flightrecord.untrusted import Unreadable, checked, unpickle

_FIRST = 96
"""Entries that are unpickled: by then most texts and stacks are known."""
_PATTERNS = 12
_TRIAL = 200
"""Entries that may be read in full before it must have paid."""

_NEXT = re.compile(rb"\}(?:q.|r....|\x94)?\((h.|j....)", re.DOTALL)


def skim(data: bytes) -> Digest | None:
    """The same as `digest(parse(data))` for an ordinary pickle; None for anything else."""
    if data[:1] != b"\x80":
        return None
    try:
        return _Skimmer(_unframed(data)).run()
    except (NotPlain, Unreadable):
        return None


def _unframed(data: bytes) -> bytes:
    """`data` without the frames of newer pickles, which only say how much to read at once."""
    if data[2:3] != b"\x95":
        return data
    parts = [data[:2]]
    at = 2
    while data[at : at + 1] == b"\x95":
        size = int.from_bytes(data[at + 1 : at + 9], "little")
        parts.append(data[at + 9 : at + 9 + size])
        at += 9 + size
    if at != len(data):
        raise NotPlain
    return b"".join(parts)


class _Skimmer:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.scan = Scan()
        self.patterns: list[Pattern] = []
        self.in_full = 0
        self.last: tuple[int, int] | None = None
        """Where the last entry lies that was matched only, and what was memoized before it."""

    def run(self) -> Digest:
        self.machine = self.after_the_first()
        self.entries()
        return self.scan.digest(checked(self.machine.rest()))

    def after_the_first(self) -> Machine:
        """A machine that has read the first entries, set up in the list of entries."""
        at = next(islice(_starts(self.data), _FIRST, None), 0)
        if not at:
            raise NotPlain
        value, memo = unpickle(self.data[:at] + b"eu.")
        entries = value.pop("entries", None) if isinstance(value, dict) else None
        if type(entries) is not list:
            raise NotPlain
        for entry in entries:
            self.scan.entry(entry)
        machine = Machine(self.data)
        machine.pos, machine.memo, machine.next_memo = at, memo, len(memo)
        machine.stack, machine.marks = [value, "entries", []], [1]
        return machine

    def entries(self) -> None:
        """The rest of the entries."""
        machine, data = self.machine, self.data
        while True:
            code = data[machine.pos] if machine.pos < len(data) else -1
            if code == DICT:
                if not self.matched():
                    self.entry()
            elif code in LISTED:  # batches of entries, or one alone
                machine.pos += 1
            elif code in PUTS:
                machine.one()
            else:
                break
        if self.last is not None:
            after = machine.pos, machine.next_memo
            machine.pos, machine.next_memo = self.last
            self.scan.last = machine.dictionary()
            machine.pos, machine.next_memo = after

    def entry(self) -> None:
        """Read one entry in full, and learn from it."""
        machine = self.machine
        self.in_full += 1
        if self.in_full > _TRIAL and 4 * self.in_full > self.scan.count:
            raise NotPlain
        known = any(pattern.match(self.data, machine.pos) for pattern in self.patterns)
        machine.trace = [] if not known and len(self.patterns) < _PATTERNS else None
        entry = machine.dictionary()
        if machine.trace is not None:
            self.learn(entry, machine.trace)
            machine.trace = None
        self.scan.entry(entry)
        self.last = None

    def learn(self, entry: dict[str, Any], trace: list[Op]) -> None:
        if [op[0] for op in trace].count(DICT) > 1:
            return  # stacks written out for the first time do not come again
        with suppress(NotPlain, KeyError, TypeError, IndexError):
            self.patterns.insert(0, Pattern(self.machine, trace, entry))

    def matched(self) -> bool:
        """Take in the finished operations from here on that match a pattern; False when there is
        none."""
        begun = self.machine.pos
        for at, pattern in enumerate(self.patterns):
            if pattern.match(self.data, begun) and self.run_of(pattern):
                if at:
                    self.patterns.insert(0, self.patterns.pop(at))
                return True
        return False

    def run_of(self, pattern: Pattern) -> bool:
        """Take in entries of one kind as long as they follow each other."""
        machine, scan = self.machine, self.scan
        known, key_of, seq_at = pattern.known, pattern.key, pattern.seq
        program, number = scan.program, int.from_bytes
        begun = pos = last = machine.pos
        taken = 0
        # Every instruction counts in this loop: it sees nearly all entries of a job.
        for match in iter(pattern.scanner(self.data, begun).match, None):
            key = match.group(*key_of)
            meaning = known.get(key) or self.meaning(pattern, key)
            if meaning is None:
                break
            group, step, name = meaning
            if name:
                if not scan.sent_or_received(*step, name):
                    break
            else:
                raw = match[seq_at]
                seq = number(raw[1:], "little") if raw[0] != LONG1 else number(raw[2:], "little")
                if seq != group.enqueued + 1 or group.open:
                    break
                group.enqueued = seq
                group.ids.append(step[1])
                program.append(step)
            last, pos = pos, match.end()
            taken += 1
        if not taken:
            return False
        scan.count += taken
        machine.pos = pos
        machine.next_memo += taken * pattern.memoized
        self.last = last, machine.next_memo - pattern.memoized
        return True

    def meaning(self, pattern: Pattern, key: tuple[bytes, ...]) -> Meaning | None:
        """What a match with this key says: the group, its number with that of the call, and the
        name of a point-to-point operation; None for what must be read in full."""
        told = pattern.told(key, self.machine.memo)
        done = pattern.retired if told.name.startswith("gloo:") else told.state == "completed"
        where = self.scan.known(told.group)
        if not done or where < 0 or (not self.scan.groups[where].ids and not pattern.p2p):
            return None
        group = self.scan.groups[where]
        group.done = True
        step = where, self.scan.number(told.name, told.sizes, told.dtypes)
        meaning = group, step, told.name if pattern.p2p else ""
        pattern.known[key] = meaning
        return meaning


def _starts(data: bytes) -> Iterator[int]:
    """Where the entries from the second on begin: with what the second begins with."""
    machine = Machine(data)
    machine.to_list("entries")
    while data[machine.pos : machine.pos + 1] != b"}":
        if data[machine.pos] not in (*PUTS, MARK):
            raise NotPlain
        machine.one()
    machine.dictionary()
    second = _NEXT.match(data, machine.pos)
    if second is None:
        raise NotPlain
    alike = re.compile(rb"\}(?:q.|r....|\x94)?\(" + re.escape(second[1]), re.DOTALL)
    return (match.start() for match in alike.finditer(data, machine.pos))
