"""One JSON line for every word, and back; whatever else comes in is a CodecError."""

import collections.abc
import contextlib
import dataclasses
import json
import random
import types
import typing
from typing import Any

import pytest

from harness import codec, events, orders
from harness.codec import CodecError

EVENTS = typing.get_args(events.Event)
ORDERS = typing.get_args(orders.Order)
COMMANDS = typing.get_args(orders.Command)


def sample(hint: Any, filled: bool) -> Any:
    """A value of type `hint`; `filled` decides between the fullest and the emptiest."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, vars(events))
        fields = dataclasses.fields(hint)
        return hint(**{field.name: sample(hints[field.name], filled) for field in fields})
    if origin in (types.UnionType, typing.Union):
        wanted = [kind for kind in inner if (kind is type(None)) != filled]
        return sample(wanted[0], filled) if wanted else sample(inner[-1], filled)
    if origin is typing.Literal:
        return inner[0]
    if origin is tuple and inner[-1] is Ellipsis:
        return (sample(inner[0], filled),) * (2 if filled else 0)
    if origin is tuple:
        return tuple(sample(each, filled) for each in inner)
    if origin in (dict, collections.abc.Mapping):
        return {sample(inner[0], filled): sample(inner[1], filled)} if filled else {}
    plain = {int: 3, float: 0.25, str: 'é "quoted"\n\x1b', bool: filled, type(None): None}
    return plain[hint]


def record(event: Any) -> events.Record:
    return events.Record(stamp=sample(events.Stamp, True), event=event, extra={"newer": "word"})


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_comes_back_as_it_was(kind: Any, filled: bool) -> None:
    before = record(sample(kind, filled))
    line = codec.encode(before)
    assert b"\n" not in line
    assert json.loads(line)["type"] == kind.__name__
    assert codec.decode(line) == before


@pytest.mark.parametrize("order", [sample(kind, True) for kind in ORDERS])
def test_every_order_comes_back_alone_and_inside_an_event(order: Any) -> None:
    assert codec.decode_order(codec.encode_order(order)) == order
    given = record(events.OrderGiven(node_rank=1, order=order))
    assert codec.decode(codec.encode(given)) == given


@pytest.mark.parametrize("command", [sample(kind, True) for kind in COMMANDS])
def test_every_command_comes_back_alone_and_inside_an_event(command: Any) -> None:
    assert codec.decode_command(codec.encode_command(command)) == command
    taken = record(events.CommandTaken(command=command, by="cli", accepted=False, why="no"))
    assert codec.decode(codec.encode(taken)) == taken


def test_a_newer_writer_may_say_more() -> None:
    for event in (
        events.AgentLost(node_rank=0, why="x"),
        events.OrderGiven(node_rank=0, order=orders.Notify(text="x")),
    ):
        raw = json.loads(codec.encode(record(event)))
        raw["event"]["new_field"] = raw["new"] = raw["stamp"]["new"] = 7
        assert codec.decode(json.dumps(raw).encode()) == record(event)


def test_an_older_writer_may_say_less() -> None:
    raw = json.loads(codec.encode(record(sample(events.WorkerExited, True))))
    del raw["event"]["oom"], raw["extra"]
    decoded = codec.decode(json.dumps(raw).encode())
    assert isinstance(decoded.event, events.WorkerExited)
    assert decoded.event.oom is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"type": "Nonsense"}, "unknown kind of event: 'Nonsense'"),
        ({"event": {"rank": "zero"}}, r"Expected `int`, got `str` - at `\$.rank`"),
        ({"event": None}, "Expected `object`"),
        ({"type": "OrderGiven", "event": 7}, "OrderGiven: expected an object"),
        ({"type": "OrderGiven", "event": {"node_rank": 0}}, "OrderGiven: .*order"),
        (
            {"type": "OrderGiven", "event": {"node_rank": 0, "order": {"type": []}}},
            "unknown kind of order",
        ),
        ({"stamp": 1}, r"\$.stamp"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], complaint: str) -> None:
    raw = json.loads(codec.encode(record(sample(events.PhaseChanged, True))))
    with pytest.raises(CodecError, match=complaint):
        codec.decode(json.dumps({**raw, **change}).encode())


def test_damaged_bytes_raise_codec_errors_only() -> None:
    chance = random.Random(7)
    lines = [codec.encode(record(sample(kind, True))) for kind in EVENTS]
    for _ in range(20_000):
        line = bytearray(chance.choice(lines))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(line))
            match chance.randrange(3):
                case 0:
                    line[at] = chance.randrange(256)
                case 1:
                    del line[at : at + chance.randint(1, 30)]
                case _:
                    line[at:at] = chance.choice([b"[" * 3000, b"null", b'"', b"{}", b"1e999"])
        for decode in (codec.decode, codec.decode_order, codec.decode_command):
            with contextlib.suppress(CodecError):
                decode(bytes(line))
