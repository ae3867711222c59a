"""A pattern of the bytes of one kind of entry in a pickle."""

import re
from dataclasses import dataclass
from typing import Any

from harness.flightrecord.plain import (
    APPEND,
    APPENDS,
    FALSE,
    FLOAT,
    GET,
    INT4,
    INTS,
    LONG1,
    LONG_GET,
    LONG_PUT,
    MARK,
    MEMOIZE,
    NONE,
    PUT,
    PUTS,
    SETITEM,
    SETITEMS,
    TEXTS,
    TRUE,
    TUPLE,
    TUPLES,
    Machine,
    NotPlain,
    Op,
)
from harness.flightrecord.scan import Group

_INT = rb"(?:K.|M..|J....|\x8a\x08.{8}|\x8a\x07.{7})"
_REF = rb"(?:h.|j....)"
_NOT_YET = rb"(?:N|" + _INT + rb")"
_KEYED = ("profiling_name", "state", "process_group", "input_sizes", "input_dtypes")
_KEPT = frozenset({*_KEYED, "collective_seq_id"})


Meaning = tuple[Group, tuple[int, int], str]
"""Of an entry: its group, the group's number with that of its call, and the name of a
point-to-point operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the kept fields of an entry say."""

    name: str
    state: str
    group: tuple[Any, ...]
    sizes: list[Any]
    dtypes: list[Any]


class Pattern:
    """Made of one entry and what the machine did to read it. `key` are the groups that tell all
    but the sequence number, which is in group `seq`; `known` is for what they were found to mean.

    Runs of numbers and of references may be of any length inside a list; a text that was written
    out in the entry is expected as a reference; times may be missing. All else is as it was.
    """

    def __init__(self, machine: Machine, trace: list[Op], entry: dict[str, Any]) -> None:
        self.p2p = bool(entry.get("is_p2p"))
        self.retired = bool(entry.get("retired"))
        self.memoized = 0
        """Values that such an entry memoizes."""
        self.known: dict[tuple[bytes, ...], Meaning] = {}
        self._fields: dict[str, list[int]] = {key: [] for key in _KEPT}
        self._referred: set[str] = set()
        self._groups = 0
        self._filled = [len(shape) > 0 for shape in entry["input_sizes"]]
        pattern = re.compile(b"".join(self._source(machine, trace)), re.DOTALL)
        self.match, self.scanner = pattern.match, pattern.scanner  # type: ignore[attr-defined]
        single = ("profiling_name", "collective_seq_id", "state")
        if any(len(self._fields[key]) != 1 for key in single) or not self._fields["process_group"]:
            raise NotPlain
        self.key = tuple(at for key in _KEYED for at in self._fields[key])
        self.seq = self._fields["collective_seq_id"][0]

    def told(self, key: tuple[bytes, ...], memo: dict[int, Any]) -> Told:
        """What the groups `key` of a match stand for."""
        parts = iter(key)
        found = {name: [next(parts) for _ in self._fields[name]] for name in _KEYED}
        name, state = (_referred(found[key][0], memo)[0] for key in ("profiling_name", "state"))
        groups = [value for raw in found["process_group"] for value in _referred(raw, memo)]
        dtypes = [value for raw in found["input_dtypes"] for value in _referred(raw, memo)]
        if "input_sizes" in self._referred:
            sizes = _referred(found["input_sizes"][0], memo)[0]
        else:
            runs = iter(found["input_sizes"])
            sizes = [_numbers(next(runs)) if filled else [] for filled in self._filled]
        if "input_dtypes" in self._referred:
            dtypes = dtypes[0]
        group = groups[0] if len(groups) == 1 else groups
        if not isinstance(name, str) or not isinstance(sizes, list):
            raise NotPlain
        return Told(name=name, state=state, group=tuple(group), sizes=sizes, dtypes=dtypes)

    def _source(self, machine: Machine, trace: list[Op]) -> list[bytes]:
        data = machine.data
        opened = next(at for at, op in enumerate(trace) if op[0] == MARK)
        parts = [self._atom(data, op, "") for op in trace[: opened + 1]]
        items = _items(trace[opened + 1 : -1])
        if len(items) % 2:
            raise NotPlain
        for at in range(0, len(items), 2):
            key, value = _key(machine, items[at][0]), items[at + 1]
            if value[0][0] in (GET, LONG_GET):
                self._referred.add(key)
            code, start, end = items[at][0]
            parts.append(_REF if code in TEXTS else re.escape(data[start:end]))
            parts += self._value(data, key, value)
        return [*parts, b"u"]

    def _value(self, data: bytes, key: str, ops: list[Op]) -> list[bytes]:
        parts: list[bytes] = []
        before = b""
        text = False
        inside = len(ops) > 1 and ops[0][0] not in (LONG1, *TEXTS, *INTS)
        for op in ops:
            if op[0] in PUTS and text:
                text = False
                continue
            text = op[0] in TEXTS
            atom = self._atom(data, op, key)
            if atom not in (_INT, _REF):
                parts.append(atom)
                before = b""
                continue
            if inside and atom == before:
                continue
            before = atom
            many = atom + b"+" if inside else atom
            if key in _KEPT:
                self._groups += 1
                self._fields[key].append(self._groups)
                many = b"(" + many + b")"
            parts.append(many)
        return parts

    def _atom(self, data: bytes, op: Op, key: str) -> bytes:
        code, start, end = op
        time = key.startswith(("time_", "duration"))
        if code in (GET, LONG_GET) or code in TEXTS:
            return _REF
        if code in (LONG1, *INTS):
            return _NOT_YET if time else _INT
        if code == NONE:
            return _NOT_YET if time else b"N"
        if code in (TRUE, FALSE) and key not in ("is_p2p", "retired"):
            return rb"[\x88\x89]"
        if code == FLOAT:
            return rb"(?:G.{8}|" + _INT + rb")"
        if code in (PUT, LONG_PUT):
            return rb"(?:q.|r....)"
        if code == MEMOIZE:
            self.memoized += 1
        return re.escape(data[start:end])


def _items(trace: list[Op]) -> list[list[Op]]:
    """The operations of an entry by key and value in turn."""
    items: list[list[Op]] = []
    marks: list[int] = []

    def merge(start: int, op: Op) -> None:
        items[start:] = [[*(part for item in items[start:] for part in item), op]]

    for op in trace:
        code = op[0]
        if code in PUTS:
            items[-1].append(op)
        elif code == MARK:
            marks.append(len(items))
            items.append([op])
        elif code in (APPENDS, SETITEMS):
            merge(marks.pop() - 1, op)
        elif code == TUPLE:
            merge(marks.pop(), op)
        elif code == APPEND:
            merge(len(items) - 2, op)
        elif code == SETITEM:
            merge(len(items) - 3, op)
        elif code in TUPLES:
            merge(len(items) - TUPLES[code], op)
        else:
            items.append([op])
    return items


def _key(machine: Machine, op: Op) -> str:
    code, start, end = op
    if code in TEXTS:
        return machine.data[start + 1 + TEXTS[code] : end].decode("utf-8", "replace")
    if code not in (GET, LONG_GET):
        raise NotPlain
    return str(machine.memo[int.from_bytes(machine.data[start + 1 : end], "little")])


def _referred(raw: bytes, memo: dict[int, Any]) -> list[Any]:
    """What a run of references stands for."""
    values = []
    at = 0
    while at < len(raw):
        size = 1 if raw[at] == GET else 4
        place = int.from_bytes(raw[at + 1 : at + 1 + size], "little")
        if place not in memo:
            raise NotPlain
        values.append(memo[place])
        at += 1 + size
    return values


def _number(raw: bytes) -> int:
    """A number as the pickle writes it."""
    if raw[0] == LONG1:
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=raw[0] == INT4)


def _numbers(raw: bytes) -> list[int]:
    """A run of numbers."""
    found = []
    at = 0
    while at < len(raw):
        size = 1 + INTS[raw[at]] if raw[at] in INTS else 2 + raw[at + 1]
        found.append(_number(raw[at : at + size]))
        at += size
    return found
