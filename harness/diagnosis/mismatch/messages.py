"""Sends that were larger than what their receiver had room for: with Gloo the receiver aborts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.collectives import PointToPoint
from harness.diagnosis.mismatch.pieces import Abort, aborts_of
from harness.diagnosis.scene import Scene
from harness.diagnosis.signature import Signature, place_text
from harness.incidents import EvidenceRef, Finding

_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "int16": 2,
    "int32": 4, "int64": 8, "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip
"""Of an element, by the names that the log of messages has."""
_HABIT = 3
"""Earlier messages of one size, to say what the next one should have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """The `number`-th of one way, as both of its ends have it on record."""

    sender: int
    receiver: int
    send: PointToPoint
    recv: PointToPoint


def find(scene: Scene) -> list[Finding]:
    """The message that a rank aborted at, when the logs of both ends show that it did not fit."""
    found = [
        message
        for abort in aborts_of(scene).values()
        for message in _received(scene, abort.rank)
        if _explains(abort, message)
    ]
    return [_finding(scene, min(found, key=lambda message: message.recv.begun_ns))] if found else []


def _log(scene: Scene, rank: int) -> tuple[PointToPoint, ...]:
    state = scene.attempt.ranks.get(rank)
    return () if state is None or state.evidence is None else state.evidence.p2p


def _received(scene: Scene, receiver: int) -> Iterator[_Message]:
    """What it had not received yet, each with its other end."""
    for recv in _log(scene, receiver):
        if recv.direction != "recv" or recv.state not in ("posted", "waiting", "failed"):
            continue
        for send in _log(scene, recv.peer):
            way = send.direction, send.peer, send.pg, send.tag, send.number
            if way == ("send", receiver, recv.pg, recv.tag, recv.number):
                yield _Message(sender=recv.peer, receiver=receiver, send=send, recv=recv)


def _explains(abort: Abort, message: _Message) -> bool:
    """Whether that many bytes came, and there was so much room."""
    sent, room = _bytes(message.send), _bytes(message.recv)
    return sent > room and (not abort.room or (abort.came, abort.room) == (sent, room))


def _bytes(op: PointToPoint) -> int:
    return math.prod(op.sizes) * _BYTES.get(op.dtype, 0)


def _finding(scene: Scene, message: _Message) -> Finding:
    odd = [
        rank
        for rank, op in ((message.sender, message.send), (message.receiver, message.recv))
        if _is_new(_log(scene, rank), op)
    ]
    tied = len(odd) != 1
    ranks = tuple(sorted({message.sender, message.receiver})) if tied else (odd[0],)
    state = scene.attempt.ranks[ranks[0]]
    where = (
        state.raised.where
        if state.raised is not None
        else None if state.evidence is None else state.evidence.user_frame
    )  # fmt: skip
    why = (
        "; nothing on record tells which of them is wrong"
        if tied
        else f"; all before that rank {ranks[0]} took part in were as the other end has it now"
    )
    group = message.recv.pg_desc or message.recv.pg
    return Finding(
        verdict="shape_mismatch",
        ranks=ranks,
        cause=f"message {message.recv.number} from rank {message.sender} to rank"
        f" {message.receiver} on {group}: rank {message.sender} sends {_text(message.send)}, rank"
        f" {message.receiver} has room for {_text(message.recv)}",
        reason=f"more came than rank {message.receiver} had room for, so it aborted{why}",
        confidence="likely" if tied else "proven",
        onset_ns=message.recv.begun_ns,
        evidence=_refs(scene, message),
        where=where,
        signature=Signature(
            verdict="shape_mismatch", what="send", detail=group, place=place_text(where)
        ).text(),
    )


def _is_new(log: Sequence[PointToPoint], op: PointToPoint) -> bool:
    """Whether all earlier ones of its way were of one other kind."""
    way = op.direction, op.peer, op.pg, op.tag
    before = [
        (each.sizes, each.dtype)
        for each in log
        if (each.direction, each.peer, each.pg, each.tag) == way and each.number < op.number
    ]
    return len(before) >= _HABIT and len(set(before)) == 1 and before[0] != (op.sizes, op.dtype)


def _text(op: PointToPoint) -> str:
    return f"{'x'.join(map(str, op.sizes)) or 'scalar'} {op.dtype}"


def _refs(scene: Scene, message: _Message) -> tuple[EvidenceRef, ...]:
    ends = ((message.sender, "sent", message.send), (message.receiver, "expected", message.recv))
    refs = []
    for rank, did, op in ends:
        if (ref := scene.attempt.ranks[rank].refs.get("evidence")) is not None:
            shows = f"rank {rank} {did} {_text(op)}"
            refs.append(EvidenceRef(source=ref[0], seq=ref[1], shows=shows))
    return tuple(refs)
