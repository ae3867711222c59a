"""A pickle machine that knows plain values only: lists, dictionaries with scalar keys, tuples,
texts, numbers, booleans, None. It can stop inside, look, and go on, which `skim` needs.

Anything it does not know makes it give up, without a word: `untrusted` then says what is wrong.
"""

import struct
from typing import Any

Op = tuple[int, int, int]
"""Opcode, where it starts and ends."""

STOP = 0x2E
GET, LONG_GET = 0x68, 0x6A
PUT, LONG_PUT, MEMOIZE = 0x71, 0x72, 0x94
PUTS = (PUT, LONG_PUT, MEMOIZE)
TEXT, SHORT_TEXT, LONG_TEXT = 0x58, 0x8C, 0x8D
TEXTS = {TEXT: 4, SHORT_TEXT: 1, LONG_TEXT: 8}
"""Bytes of the length that comes first."""
INT1, INT2, INT4, LONG1, FLOAT = 0x4B, 0x4D, 0x4A, 0x8A, 0x47
INTS = {INT1: 1, INT2: 2, INT4: 4}
NONE, TRUE, FALSE = 0x4E, 0x88, 0x89
MARK, LIST, DICT = 0x28, 0x5D, 0x7D
APPENDS, APPEND, SETITEMS, SETITEM = 0x65, 0x61, 0x75, 0x73
LISTED = (MARK, APPENDS, APPEND)
TUPLE, TUPLES = 0x74, {0x85: 1, 0x86: 2, 0x87: 3}
_CONSTANTS: dict[int, Any] = {NONE: None, TRUE: True, FALSE: False, 0x29: ()}
_SKIPPED = {0x80: 1, 0x95: 8}
"""PROTO and FRAME: bytes of the argument."""


_MOST = 1 << 17
"""Operations in one go; a dump's largest part needs some thousands."""


class NotPlain(Exception):
    """Not the kind of pickle that this machine reads."""


class Machine:
    """Runs over `data` from `pos`. `trace`, when set, collects what it does.

    `stack` and `marks` (positions in the stack) are those of a pickle machine.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.next_memo = 0
        self.trace: list[Op] | None = None

    def rest(self) -> Any:
        """The value of the whole pickle, when all of it has been read."""
        self._run(STOP)
        if len(self.stack) != 1 or self.marks:
            raise NotPlain
        return self.stack[0]

    def to_list(self, key: str) -> None:
        """Go on until the list under `key` of the outermost dictionary has been opened."""
        while self._run(LIST, STOP) != STOP:
            if len(self.marks) == 1 and self.stack[-2:-1] == [key]:
                return
        raise NotPlain

    def dictionary(self) -> dict[str, Any]:
        """The dictionary that begins here."""
        depth = len(self.marks)
        while True:
            self._run(SETITEMS)
            if len(self.marks) == depth:
                break
            if len(self.marks) < depth:
                raise NotPlain
        value = self.stack.pop()
        if type(value) is not dict:
            raise NotPlain
        return value

    def one(self) -> None:
        """Do the memo operation or the mark that is next."""
        self._run(*PUTS, MARK)

    def _run(self, *until: int) -> int:
        """Go on until one of the operations is done; returns its code."""
        try:
            return self._loop(until)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error):
            raise NotPlain from None

    def _loop(self, until: tuple[int, ...]) -> int:
        data, stack, memo, trace = self.data, self.stack, self.memo, self.trace
        number = int.from_bytes
        pos = self.pos
        for _ in range(_MOST):
            start = pos
            code = data[pos]
            pos += 1
            if code == GET:
                stack.append(memo[data[pos]])
                pos += 1
            elif code == LONG_GET:
                stack.append(memo[number(data[pos : pos + 4], "little")])
                pos += 4
            elif code == PUT:
                memo[data[pos]] = stack[-1]
                pos += 1
            elif code == LONG_PUT:
                memo[number(data[pos : pos + 4], "little")] = stack[-1]
                pos += 4
            elif code in INTS:
                size = INTS[code]
                stack.append(number(data[pos : pos + size], "little", signed=code == INT4))
                pos += size
            elif code in TEXTS:
                size = TEXTS[code]
                begin = pos + size
                pos = begin + number(data[pos:begin], "little")
                stack.append(data[begin:pos].decode("utf-8", "surrogatepass"))
            elif code == MARK:
                self.marks.append(len(stack))
            elif code == DICT:
                stack.append({})
            elif code == LIST:
                stack.append([])
            elif code == MEMOIZE:
                memo[self.next_memo] = stack[-1]
                self.next_memo += 1
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == LONG1:
                size = data[pos]
                stack.append(number(data[pos + 1 : pos + 1 + size], "little", signed=True))
                pos += 1 + size
            elif code == FLOAT:
                stack.append(struct.unpack_from(">d", data, pos)[0])
                pos += 8
            elif code in _SKIPPED:
                pos += _SKIPPED[code]
            elif code != STOP:
                self._gather(code)
            if trace is not None:
                trace.append((code, start, pos))
            if code in until:
                if pos > len(data):
                    raise NotPlain
                self.pos = pos
                return code
        raise NotPlain

    def _gather(self, code: int) -> None:
        """What makes one value of several."""
        stack = self.stack
        if code == SETITEMS:
            self._set(self._popped())
        elif code == APPENDS:
            items = self._popped()
            self._list().extend(items)
        elif code == APPEND:
            item = stack.pop()
            self._list().append(item)
        elif code == SETITEM:
            value, key = stack.pop(), stack.pop()
            self._set([key, value])
        elif code in TUPLES:
            count = TUPLES[code]
            if count > len(stack):
                raise NotPlain
            items = stack[-count:]
            del stack[-count:]
            stack.append(tuple(items))
        elif code == TUPLE:
            stack.append(tuple(self._popped()))
        else:
            raise NotPlain

    def _popped(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _list(self) -> list[Any]:
        target = self.stack[-1]
        if type(target) is not list:
            raise NotPlain
        return target

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise NotPlain
        for at in range(0, len(items), 2):
            if type(items[at]) not in (str, int):
                raise NotPlain
            target[items[at]] = items[at + 1]
