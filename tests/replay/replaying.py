"""A recorded run through the pure core again, on a virtual clock.

What was decided then is left out: only what happened is fed in, at the time at which it was
recorded, and the core decides anew.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import codec, recovery
from harness import events as e
from harness.state import RunState, fold

DECIDED = (
    e.OrderGiven,
    e.AttemptStarted,
    e.StallLooked,
    e.IncidentOpened,
    e.IncidentClosed,
    e.IncidentSettled,
    e.RunEnded,
    e.NodesAwaited,
    e.Regrouping,
    e.HostStruck,
)


def read(path: Path) -> list[e.Record]:
    """Records of an events.jsonl or journal.jsonl; a journal's header line is passed over."""
    lines = path.read_bytes().splitlines()
    return [codec.decode(line) for line in lines if line.strip() and b'"stamp"' in line]


def replay(records: Iterable[e.Record]) -> RunState:
    """The state at the end, with the decisions of today's core."""
    state, now_ns, seq = RunState(), 0, 0

    def settle() -> None:
        nonlocal seq
        while decisions := recovery.plan(state, now_ns):
            for decision in decisions:
                attempt = len(state.attempts) - 1
                if isinstance(decision, e.AttemptStarted):
                    attempt = decision.attempt
                stamp = e.Stamp(
                    run="",
                    attempt=max(attempt, 0),
                    source="controller",
                    seq=seq,
                    wall_ns=now_ns,
                    mono_ns=now_ns,
                )
                seq += 1
                fold(state, e.Record(stamp=stamp, event=decision))

    def advance(until_ns: int) -> None:
        nonlocal now_ns
        while (at_ns := recovery.next_wake_ns(state, now_ns)) is not None and at_ns <= until_ns:
            now_ns = at_ns
            settle()
        now_ns = max(now_ns, until_ns)

    for record in records:
        if isinstance(record.event, DECIDED):
            continue
        advance(record.stamp.wall_ns)
        fold(state, record)
        settle()
    return state


def compare(state: RunState, expected: dict[str, Any]) -> list[str]:
    """What differs from `expected`, in words."""
    first = state.incidents[0] if state.incidents else None
    verdict = None if first is None else first.verdict
    where = None if verdict is None else verdict.where
    found: dict[str, Any] = {
        "incidents": len(state.incidents),
        "verdict": None if verdict is None else verdict.verdict,
        "first_failing": None if verdict is None else list(verdict.first_failing),
        "victims": None if verdict is None else list(verdict.victims),
        "confidence": None if verdict is None else verdict.confidence,
        "action": None if first is None else first.action,
        "last_action": state.incidents[-1].action if state.incidents else None,
        "where_line": None if where is None else where.line,
        "outcome": None if state.ended is None else state.ended.outcome,
        "exit_code": None if state.ended is None else state.ended.exit_code,
    }
    wrong = [
        f"{name}: expected {value!r}, got {found[name]!r}"
        for name, value in expected.items()
        if name != "cause_has" and found[name] != value
    ]
    cause = "" if verdict is None else verdict.cause
    if expected.get("cause_has", "") not in cause:
        wrong.append(f"cause: expected {expected['cause_has']!r} in {cause!r}")
    return wrong


def write(folder: Path, records: Iterable[e.Record], expected: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = b"".join(codec.encode(record) + b"\n" for record in records)
    (folder / "events.jsonl").write_bytes(lines)
    text = json.dumps(expected, indent=2) + "\n"
    (folder / "expected.json").write_text(text, encoding="utf-8")
