"""`harness attach`: the stacks of a job that something else has started. Looks, touches nothing."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import click

from harness import stacks
from harness.agent import flight, processes, showing
from harness.agent.stacks import Subject, Taker, is_python, what_to_allow
from harness.cli.numbers import Whole
from harness.cli.output import note
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import ProcessError
from harness.sightings import RankStack

_SECONDS = 10.0
_SERVER_VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
_SHOWN_ENTRIES = 1


@click.command("attach", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("pids", nargs=-1, type=Whole(least=1), metavar="PID...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(pids: tuple[int, ...], as_json: bool) -> None:
    """Show the stacks of all ranks at or below each PID: a torchrun, or the ranks themselves.

    A process with RANK in its environment is a rank. Where it offers torch's worker server
    (TORCH_WORKER_SERVER_SOCKET), the head of its flight record is shown too. The job goes on.

    \b
      harness attach $(pgrep -f torchrun)
      harness attach 4711 4712 --json
    """
    if not pids:
        raise ProcessError(
            "no process given", help="harness attach PID, of torchrun or of its ranks"
        )
    ranks = find_ranks(pids)
    taken, records = asyncio.run(_look(ranks))
    if as_json:
        print_json({"schema": SCHEMA, **stacks.as_json(taken), "flight": records})
        return
    click.echo(stacks.text(taken))
    if records:
        click.echo("\nflight record: the newest operation of each rank")
    for record in records:
        done = "done" if record["retired"] else "not done"
        click.echo(
            f"  rank {record['rank']}: {record['op']} {record['seq_id']} "
            f"of {record['pg_desc'] or record['pg']}, {done}"
        )


def find_ranks(pids: tuple[int, ...]) -> dict[int, int]:
    """Rank -> pid, of all ranks at or below `pids`. Raises UsageError when there is none."""
    family = processes.family()
    found: dict[int, int] = {}
    for root in pids:
        if processes.read_stat(root) is None:
            raise ProcessError(f"there is no process {root}")
        below = [root, *(stat.pid for stat in processes.descendants(root, family))]
        for pid in below:
            rank = _rank_of(pid)
            if rank is None or found.setdefault(rank, pid) == pid:
                continue
            # A rank's own children carry the same variable; the rank comes before them.
            if not _is_below(pid, found[rank], family):
                raise ProcessError(
                    f"processes {found[rank]} and {pid} both say that they are rank {rank}",
                    help="they are of different jobs; attach to one of them at a time",
                )
    return found or _numbered(pids)


def _numbered(pids: tuple[int, ...]) -> dict[int, int]:
    """The Python processes among `pids` as ranks, in this order: none of them says which it is."""
    pythons = [pid for pid in dict.fromkeys(pids) if is_python(pid)]
    if not pythons:
        raise ProcessError(
            f"no rank at or below process {', '.join(map(str, pids))}",
            help="a rank is a Python process with RANK in its environment; where it cannot be "
            f"read, {what_to_allow()}",
        )
    note("no process here has RANK in its environment; they are numbered as given")
    return dict(enumerate(pythons))


def _is_below(pid: int, root: int, family: processes.Family) -> bool:
    return any(stat.pid == pid for stat in processes.descendants(root, family))


def _rank_of(pid: int) -> int | None:
    text = _environ(pid).get("RANK", "")
    return int(text) if text.isdigit() and is_python(pid) else None


def _environ(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


async def _look(ranks: dict[int, int]) -> tuple[list[RankStack], list[dict[str, Any]]]:
    taker = Taker(time.monotonic() + _SECONDS)
    taken = await asyncio.gather(
        *(showing.of_process(rank, Subject(pid=pid), taker) for rank, pid in ranks.items())
    )
    records = await asyncio.gather(*(_record(rank, pid, taker) for rank, pid in ranks.items()))
    return list(taken), [record for record in records if record is not None]


async def _record(rank: int, pid: int, taker: Taker) -> dict[str, Any] | None:
    """The newest entry of the rank's flight record, if it offers one."""
    server = _environ(pid).get(_SERVER_VARIABLE, "")
    if not server:
        return None
    try:
        data = await flight.ask(Path(server), "fr_trace_json", taker.left(2.0))
        entries = flight.parse(data)[-_SHOWN_ENTRIES:]
    except (flight.Unanswered, ValueError, TypeError, IndexError, KeyError) as error:
        note(f"rank {rank}: no flight record ({error})")
        return None
    if not entries:
        return None
    newest = entries[-1]
    return {
        "rank": rank,
        "op": newest.op,
        "pg": newest.pg,
        "pg_desc": newest.pg_desc,
        "seq_id": newest.seq_id,
        "state": newest.state,
        "retired": newest.retired,
    }
