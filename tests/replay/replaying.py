"""Recorded runs: read, replayed and compared with what is expected of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import codec
from harness import events as e
from harness.recovery import DECIDED, replay
from harness.state import RunState

__all__ = ["DECIDED", "compare", "read", "replay", "write"]


def read(path: Path) -> list[e.Record]:
    """Records of an events.jsonl or journal.jsonl; a journal's header line is passed over."""
    lines = path.read_bytes().splitlines()
    return [codec.decode(line) for line in lines if line.strip() and b'"stamp"' in line]


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
