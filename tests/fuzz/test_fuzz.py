"""What comes from outside is either understood or refused with the error that stands for it: no
other error, no hang.

A few examples of each here; `make fuzz` tries as many as there is time for (FUZZ_EXAMPLES).
"""

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import random
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import codec, config, events, journal, orders, recovery
from harness.controller.loop import DECISIONS
from harness.controller.plausible import flaw
from harness.diagnosis.waits.live import rank_wait
from harness.errors import UsageError
from harness.flightrecord.untrusted import Unreadable, parse
from harness.policy import Policy
from harness.state import RunState, fold
from harness.topology import NodeRanks

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
EVENTS = typing.get_args(events.Event)
SPOKEN = [kind for kind in EVENTS if kind not in DECISIONS]
"""What an agent may say."""
ODD_NUMBERS = (-(2**63), 2**63 - 1, -1, 0, 1, 2, 3, 10**9, 10**18 + 5)
ODD_WORDS = ("", "a", "step", "init", "0", "é\n\x1b", "all_reduce", "x" * 300, "loss")
BEGAN_NS = 10**18

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(events))


def odd(hint: Any, draw: random.Random) -> Any:
    """Any value of type `hint`, the borders of it often."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        made: Any = hint
        names = [field.name for field in dataclasses.fields(hint)]
        return made(**{name: odd(hints(hint)[name], draw) for name in names})
    if origin in (types.UnionType, typing.Union):
        return odd(draw.choice(inner), draw)
    if origin is typing.Literal:
        return draw.choice(inner)
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(odd(inner[0], draw) for _ in range(draw.randrange(4)))
    if origin is tuple:
        return tuple(odd(each, draw) for each in inner)
    if origin in (dict, Mapping):
        return {odd(inner[0], draw): odd(inner[1], draw) for _ in range(draw.randrange(3))}
    numbers = draw.choice(ODD_NUMBERS) if draw.random() < 0.25 else draw.randrange(3)
    plain = {
        int: numbers,
        float: draw.choice((0.0, 1.5, -1.0, 1e308, -1e308, 1e-300)),
        str: draw.choice(ODD_WORDS),
        bool: draw.random() < 0.5,
        type(None): None,
    }
    return plain[hint]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """`data` with a few bytes changed, left out, doubled or cut off."""
    made = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(made) + 1)
        match draw.randrange(4):
            case 0:
                made[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del made[at : at + draw.randrange(1, 9)]
            case 2:
                made[at:at] = made[max(0, at - draw.randrange(1, 9)) : at]
            case _:
                del made[at:]
    return bytes(made)


def stamp(draw: random.Random, seq: int) -> events.Stamp:
    return events.Stamp(
        run="t",
        attempt=draw.choice((0, 0, 0, 1, -1, 2**62)),
        source="agent:0",
        seq=seq,
        wall_ns=draw.choice((BEGAN_NS + seq, BEGAN_NS + 10**9 * seq, 0, -1, 2**63 - 1)),
        mono_ns=seq,
    )


def line_of(kind: Any, draw: random.Random, seq: int) -> bytes | None:
    """A record as it would cross the wire; None for what JSON cannot hold."""
    try:
        return codec.encode(events.Record(stamp=stamp(draw, seq), event=odd(kind, draw)))
    except (OverflowError, ValueError):
        return None


@fuzzed
@given(st.integers(0, 2**32))
def test_damaged_events_orders_and_commands(seed: int) -> None:
    draw = random.Random(seed)
    readers: list[tuple[Callable[[bytes], Any], bytes]] = [
        (codec.decode, line_of(draw.choice(EVENTS[:20]), draw, 0) or b"{}"),
        (codec.decode_order, _order(draw)),
        (codec.decode_command, _command(draw)),
    ]
    for read, data in readers:
        with contextlib.suppress(codec.CodecError):
            read(damaged(data, draw))


@fuzzed
@given(st.integers(0, 2**32))
def test_damaged_evidence_of_a_node(seed: int) -> None:
    """What is read of it can be written again, and judged."""
    draw = random.Random(seed)
    told = json.loads(_evidence(draw))
    for _ in range(draw.randrange(3)):
        _replace_one(told["event"], draw)
    line = json.dumps(told).encode()
    with contextlib.suppress(codec.CodecError):
        record = codec.decode(line if draw.random() < 0.7 else damaged(line, draw))
        if not isinstance(record.event, events.EvidenceOfNode):
            return
        for taken in record.event.taken:
            rank_wait(taken)
        again = codec.decode(codec.encode(record)).event
        assert again == record.event


def _evidence(draw: random.Random) -> bytes:
    taken = tuple(
        dataclasses.replace(odd(events.EvidenceTaken, draw), rank=rank) for rank in range(2)
    )
    event = events.EvidenceOfNode(node_rank=0, taken=taken)
    try:
        return codec.encode(events.Record(stamp=stamp(draw, 0), event=event))
    except (OverflowError, ValueError):
        return _evidence(draw)


def _replace_one(at: Any, draw: random.Random) -> None:
    """A number or list somewhere in it by another one."""
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = draw.choice(keys)
        if not isinstance(at[key], dict | list) or draw.random() < 0.1:
            at[key] = draw.choice((*ODD_NUMBERS, 2**64, [], [0], [[0, 1, 2**20], [5, -1, 9]]))
            return
        at = at[key]


def _order(draw: random.Random) -> bytes:
    order = odd(draw.choice(typing.get_args(orders.Order)), draw)
    return codec.encode_order(order)


def _command(draw: random.Random) -> bytes:
    command = odd(draw.choice(typing.get_args(orders.Command)), draw)
    return codec.encode_command(command)


@fuzzed
@given(st.binary(max_size=200))
def test_any_bytes_are_no_event(data: bytes) -> None:
    for read in (codec.decode, codec.decode_order, codec.decode_command):
        with pytest.raises(codec.CodecError):
            read(data)


@fuzzed
@given(st.integers(0, 2**32))
def test_a_damaged_journal(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    lines = [b'{"schema":1,"harness":"0","run":"t"}']
    lines += [line_of(events.PhaseChanged, draw, seq) or b"{}" for seq in range(4)]
    path = tmp_path_factory.getbasetemp() / "fuzzed.jsonl"
    path.write_bytes(damaged(b"\n".join(lines) + b"\n", draw))
    with contextlib.suppress(journal.JournalError):
        for _ in journal.read(path, on_bad="skip", say=lambda text: None):
            pass


@fuzzed
@given(st.integers(0, 2**32))
def test_damaged_dumps(seed: int) -> None:
    draw = random.Random(seed)
    entry = {"pg_id": 0, "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "frames": []}
    dump = {"version": "2.4", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry] * 3}
    for data in (pickle.dumps(dump, protocol=2), json.dumps(dump).encode()):
        with contextlib.suppress(Unreadable):
            parse(damaged(data, draw))


@fuzzed
@given(st.integers(0, 2**32))
def test_damaged_settings(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    folder: Path = tmp_path_factory.getbasetemp()
    text = b'max_restarts = 3\nstop_grace = 1.5\ntee = "3"\nzygote = false\n[tui]\nhz = 4\n'
    (folder / "harness.toml").write_bytes(damaged(text, draw))
    with contextlib.suppress(UsageError):
        config.resolve({}, environ={}, cwd=folder)


@fuzzed
@given(st.integers(0, 2**32))
def test_whatever_an_agent_says_can_be_folded_and_judged(seed: int) -> None:
    """Else one record of one agent would end this controller and all that come after it."""
    draw = random.Random(seed)
    state, told = RunState(), 0

    def take(event: Any, now_ns: int, spoken: events.Stamp | None = None) -> None:
        nonlocal told
        own = events.Stamp(
            run="t", attempt=0, source="controller", seq=told, wall_ns=now_ns, mono_ns=told
        )
        told += 1
        fold(state, events.Record(stamp=spoken or own, event=event))

    for event in _beginning():
        take(event, BEGAN_NS)
    for seq in range(draw.randrange(1, 9)):
        line = line_of(draw.choice(SPOKEN), draw, seq)
        if line is None:
            continue
        record = codec.decode(line)
        if flaw(record.event):
            continue
        take(record.event, 0, record.stamp)
        now_ns = BEGAN_NS + 10**9 * (seq + 1)
        for _ in range(20):
            for decision in (decisions := recovery.plan(state, now_ns)):
                take(decision, now_ns)
            if not decisions:
                break
        recovery.next_wake_ns(state, now_ns)


def _beginning() -> list[Any]:
    node = NodeRanks(node_rank=0, host="h", first_rank=0, size=2)
    return [
        events.RunStarted(
            run="t",
            command=("train.py",),
            nnodes=1,
            min_nodes=0,
            spares=0,
            grow=False,
            strikes=(),
            policy=Policy(),
            chaos_allowed=True,
            harness_version="0",
            master_port=0,
            master_addr="",
            run_dir="runs/t",
        ),
        events.ControllerStarted(pid=1, address="127.0.0.1:1", incarnation=0),
        events.AgentJoined(node_rank=0, host="h", pid=1, local_world_size=2),
        events.AttemptStarted(attempt=0, world_size=2, nodes=(node,), why="first"),
    ]
