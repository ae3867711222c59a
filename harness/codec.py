"""Dataclass <-> one JSON line: the same bytes in the journal, on sockets and in gRPC messages.

A record is `{"stamp": {...}, "type": "WorkerExited", "event": {...}}`; an order or a command is
`{"type": "StopWorkers", ...fields}`, alone as well as inside an event. Evidence of a whole node is
packed (harness.packing).
"""

import dataclasses
import typing
from functools import cache
from typing import Any

import msgspec

from harness import events, packing, unpacking
from harness.events import Event, EvidenceOfNode, Record, Stamp
from harness.orders import Command, Order


class CodecError(ValueError):
    """Bytes that are not one of ours; the text says what is wrong and where."""


class _Line(msgspec.Struct):
    stamp: Stamp
    type: str
    event: msgspec.Raw
    extra: dict[str, str] = {}


def _members(union: Any) -> dict[str, type]:
    return {member.__name__: member for member in typing.get_args(union)}


_EVENTS = _members(Event)
_TAGGED: dict[Any, dict[str, type]] = {Order: _members(Order), Command: _members(Command)}


@cache
def _decoder(cls: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(cls)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, vars(events))


@cache
def _tagged_fields(cls: Any) -> tuple[str, ...]:
    """Fields that hold one of several dataclasses: msgspec needs a tag for those."""
    return tuple(name for name, hint in _hints(cls).items() if hint in _TAGGED)


def _tag(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, **msgspec.to_builtins(value)}


def _untag(raw: Any, union: Any) -> Any:
    members = _TAGGED[union]
    name = raw.get("type") if isinstance(raw, dict) else raw
    if not isinstance(name, str) or name not in members:
        raise CodecError(f"unknown kind of order or command: {name!r}"[:200])
    fields = {key: value for key, value in raw.items() if key != "type"}
    return msgspec.convert(fields, members[name])


def _decode_event(name: str, raw: msgspec.Raw) -> Event:
    cls = _EVENTS.get(name)
    if cls is None:
        raise CodecError(f"unknown kind of event: {name[:80]!r} (written by a newer version?)")
    if cls is EvidenceOfNode:
        return unpacking.unpacked(raw)
    if not _tagged_fields(cls):
        return typing.cast(Event, _decoder(cls).decode(raw))
    values: Any = msgspec.json.decode(raw)
    if not isinstance(values, dict):
        raise CodecError(f"{name}: expected an object")
    hints = _hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}
    fields = {
        key: _untag(value, hints[key])
        if key in _tagged_fields(cls)
        else msgspec.convert(value, hints[key])
        for key, value in values.items()
        if key in known
    }
    try:
        return typing.cast(Event, cls(**fields))
    except TypeError as error:
        raise CodecError(f"{name}: {error}") from None


def encode(record: Record) -> bytes:
    """One record as JSON, without a line end."""
    event: Any = record.event
    cls: Any = type(event)
    tagged = _tagged_fields(cls)
    if cls is EvidenceOfNode:
        event = packing.packed(event)
    elif tagged:
        event = {
            field.name: _tag(getattr(event, field.name))
            if field.name in tagged
            else msgspec.to_builtins(getattr(event, field.name))
            for field in dataclasses.fields(event)
        }
    line: dict[str, Any] = {
        "stamp": record.stamp,
        "type": type(record.event).__name__,
        "event": event,
    }
    if record.extra:
        line["extra"] = dict(record.extra)
    return msgspec.json.encode(line)


def decode(line: bytes) -> Record:
    """The record in `line`. Raises CodecError, with the path of the offending field."""
    try:
        raw = _decoder(_Line).decode(line)
        event = _decode_event(raw.type, raw.event)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CodecError(str(error)) from None
    return Record(stamp=raw.stamp, event=event, extra=raw.extra)


def encode_order(order: Order) -> bytes:
    return msgspec.json.encode(_tag(order))


def decode_order(data: bytes) -> Order:
    return typing.cast(Order, _decode_tagged(data, Order))


def encode_command(command: Command) -> bytes:
    return msgspec.json.encode(_tag(command))


def decode_command(data: bytes) -> Command:
    return typing.cast(Command, _decode_tagged(data, Command))


def _decode_tagged(data: bytes, union: Any) -> Any:
    try:
        return _untag(msgspec.json.decode(data), union)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CodecError(str(error)) from None
