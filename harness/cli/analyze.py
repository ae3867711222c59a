"""`harness analyze`: which rank a hang began with, from flight-record dumps of any job."""

import time
from pathlib import Path
from typing import Any

import click

from harness import report
from harness.cli.completing import complete_folders
from harness.cli.output import note
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.diagnosis.waits import judge
from harness.diagnosis.waits.table import GroupState, group_states
from harness.errors import ExitCode
from harness.flightrecord import folder as dumps
from harness.incidents import Incident, Verdict
from harness.state import RunState
from harness.topology import ranks_name, ranks_text

_WHY = "dumps are all there is: nothing is changed"


@click.command("analyze", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("directory", metavar="DIR", required=False, shell_complete=complete_folders)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
@click.option("--groups", is_flag=True, help="Group by group: who is missing, who differs.")
@click.option("--check", is_flag=True, help="Exit with 80 when a hang or a desync is found.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of --json and stop.")
def command(
    directory: str | None, as_json: bool, groups: bool, check: bool, schema: bool
) -> int | None:
    """Name the rank that a hang or desync began with, from the flight-record dumps in DIR: one
    file per rank, NCCL or Gloo, pickle or JSON, of any PyTorch job.

    \b
      harness analyze /tmp/nccl_trace
      harness analyze dumps --groups
      harness analyze dumps --json | jq '.incidents[].first_failing'
    """
    if schema:
        print_json(schema_json())
        return None
    if directory is None:
        raise click.UsageError("missing argument DIR: the directory with the dumps")
    reading = dumps.read(Path(directory))
    verdicts = judge(reading.waits)
    now_ns = time.time_ns()
    states = group_states(reading.waits) if groups else []
    if as_json:
        print_json(_json(reading, verdicts, states if groups else None, now_ns))
    else:
        click.echo(_text(directory, reading, verdicts))
        if groups:
            click.echo(_groups_text(states))
        for told in reading.notes:
            note(f"{told.file}: {told.why}")
    return ExitCode.HANG if check and verdicts else None


# --- text --------------------------------------------------------------------------------------


def _text(directory: str, reading: dumps.Reading, verdicts: list[Verdict]) -> str:
    there = reading.waits.ranks
    left = sorted(set(range(reading.waits.world_size)) - there.keys())
    count = f"{len(there)} of {reading.waits.world_size} ranks on record"
    missing = f"; none of {ranks_name(left)}" if left else ""
    if verdicts:
        cards = [report.dump_card(verdict, directory) for verdict in verdicts]
        return "\n\n".join([*cards, f"{count}{missing}"])
    waiting = [rank for rank, wait in there.items() if wait.pending]
    idle = f"operations of {ranks_name(waiting)} are under way" if waiting else "nothing is pending"
    return f"no hang and no desync: {idle}; {count}{missing}"


def _groups_text(states: list[GroupState]) -> str:
    lines = []
    quiet = 0
    for state in states:
        if not state.troubled:
            quiet += 1
            continue
        call = state.call.text if state.call is not None else "a collective"
        lines.append(
            f"{state.group.label} ({state.group.name}), {ranks_name(state.members)}: #{state.seq}"
            f" {call}, finished by all up to #{state.finished}"
        )
        if state.missing:
            lines.append(f"  missing: {ranks_text(state.missing)}")
        if state.silent:
            lines.append(f"  no record: {ranks_text(state.silent)}")
        if state.differ:
            lines.append(
                f"  differ at #{state.differs_at}: {ranks_text(state.differ)} ({state.differing})"
            )
    lines.append(f"{quiet} group{'' if quiet == 1 else 's'} in which all agree and finished")
    return "\n".join(["", *lines])


# --- JSON --------------------------------------------------------------------------------------


def _json(
    reading: dumps.Reading,
    verdicts: list[Verdict],
    states: list[GroupState] | None,
    now_ns: int,
) -> dict[str, Any]:
    """By harness/schemas/analyze.schema.json."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "world_size": reading.waits.world_size,
        "ranks": sorted(reading.waits.ranks),
        "incidents": [
            _incident(number, verdict, now_ns) for number, verdict in enumerate(verdicts, start=1)
        ],
        "unreadable": [
            {"file": told.file, "rank": told.rank, "why": told.why} for told in reading.notes
        ],
    }
    if states is not None:
        value["groups"] = [_group(state) for state in states]
    return value


def _incident(number: int, verdict: Verdict, now_ns: int) -> dict[str, Any]:
    incident = Incident(
        id=number, verdict=verdict, action="report", action_reason=_WHY, detected_ns=now_ns
    )
    value = report.incident_json(RunState(), incident)
    value["onset"] = value["onset"] or value["detected"]
    return value


def _group(state: GroupState) -> dict[str, Any]:
    return {
        "pg": state.group.name,
        "pg_desc": state.group.desc,
        "ranks": list(state.members),
        "seq_id": state.seq,
        "op": None if state.call is None else state.call.op,
        "finished_seq_id": state.finished,
        "missing": list(state.missing),
        "no_record": list(state.silent),
        "differ": list(state.differ),
        "differ_seq_id": None if state.differs_at < 0 else state.differs_at,
    }


def schema_json() -> Any:
    """The JSON schema of what `--json` prints."""
    import json

    import harness

    path = Path(harness.__file__).parent / "schemas" / "analyze.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))
