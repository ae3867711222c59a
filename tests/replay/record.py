"""Make a recording of a real run: `python -m tests.replay.record RUNDIR NAME`.

NAME is `verdict/name`, for example `killed_by_signal/one_rank_of_four`. Writes the run's events
without machine paths and host names, and what the core says of them today as `expected.json`:
read that file before committing it. The programs of the hanging runs stand on the pages of their
verdicts. A recorded hang holds the looks that were taken then: it has to be made anew when the core
looks at other times.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from harness import codec
from harness import events as e
from harness.state import RunState
from tests.replay.construct import RECORDINGS
from tests.replay.replaying import DECIDED, read, replay, write

_PACKAGE = re.compile(rb"/[^\s\"':,]*/(?=(?:site|dist)-packages/)")
_LIBRARY = re.compile(rb"/[^\s\"':,]*/(?=lib/python3)")
_OTHER = re.compile(rb"/(?:[\w.+~-]+/)+(?=[\w.+~-]+)")


def scrub(record: e.Record) -> e.Record:
    """`record` with paths cut to what a detector may look at, and nodes named by their number."""
    line = codec.encode(record)
    line = _PACKAGE.sub(b"<P>", line)
    line = _LIBRARY.sub(b"<P>", line)
    # A path inside a package keeps its folders; any other keeps its last part.
    parts = re.split(rb"(<P>[^\s\"':,]*|gloo/[^\s\"':,]*)", line)
    parts[::2] = [_OTHER.sub(b"/home/u/", part) for part in parts[::2]]
    clean = codec.decode(b"".join(parts).replace(b"<P>", b"/"))
    event = clean.event
    if isinstance(event, e.AgentJoined):
        event = replace(event, host=f"host{event.node_rank}")
    return replace(clean, event=event)


def expected_of(state: RunState) -> dict[str, object]:
    """What the core says today."""
    found: dict[str, object] = {"incidents": len(state.incidents)}
    if state.incidents:
        incident = state.incidents[0]
        found |= {
            "verdict": incident.verdict.verdict,
            "first_failing": list(incident.verdict.first_failing),
            "victims": list(incident.verdict.victims),
            "confidence": incident.verdict.confidence,
            "action": incident.action,
        }
    if state.ended is not None:
        found |= {"outcome": state.ended.outcome, "exit_code": state.ended.exit_code}
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or "/" not in arguments[1]:
        print("usage: python -m tests.replay.record RUNDIR VERDICT/NAME", file=sys.stderr)
        return 2
    journal = Path(arguments[0]) / "journal.jsonl"
    if not journal.is_file():
        print(f"error: {journal} is not there", file=sys.stderr)
        return 2
    records = [scrub(r) for r in read(journal) if not isinstance(r.event, DECIDED)]
    expected = expected_of(replay(records))
    write(RECORDINGS / arguments[1], records, expected)
    print(f"{RECORDINGS / arguments[1]}: {len(records)} records, {expected}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
