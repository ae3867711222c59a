"""`harness stacks`: where all ranks are now; of a run that is over, where they were."""

import asyncio
import os
import time

import click

from harness import runs, stacks
from harness.cli.ask import door_of, user
from harness.cli.choosing import ranks_where, where_option
from harness.cli.logs import parse_ranks
from harness.cli.output import note
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json, reading_options
from harness.errors import FilterError, NodeFailure, Refused, TooEarly
from harness.events import RunEnded, StacksTaken
from harness.orders import ShowStacks
from harness.sightings import RankStack
from harness.state import RunState

_PATIENCE_SECONDS = 15.0


@click.command("stacks", cls=ReadingCommand, context_settings=SETTINGS)
@reading_options
@click.option("--rank", "ranks", metavar="RANKS", help="Only these ranks, such as 0-3,7.")
@where_option
@click.option(
    "--locals",
    "with_locals",
    type=click.BOOL,
    default=False,
    metavar="yes|no",
    help="Show local variables too; they may hold secrets.  [default: no]",
)
def command(
    run: str | None,
    runs_dir: str | None,
    as_json: bool,
    ranks: str | None,
    where: str | None,
    with_locals: bool,
) -> None:
    """Show where all ranks of RUN are, equal stacks grouped, the odd one out first.

    The run goes on. Of a run that is over, the stacks of its last incident are shown.

    \b
      harness stacks
      harness stacks --rank 0-3 swift-otter-12
      harness stacks --where 'pp=1 !tp=0'
      harness stacks --json | jq .sentence
    """
    found = runs.find(run, runs.runs_dir(runs_dir))
    state = runs.read(found).state
    live = state.ended is None
    chosen = () if ranks is None else tuple(sorted(parse_ranks(ranks)))
    there = ranks_where(state, where)
    if there is not None:
        chosen = tuple(sorted(there.intersection(chosen) if chosen else there))
        if not chosen:
            raise FilterError("--rank and --where together choose no rank")
    if live:
        taken = asyncio.run(_ask(found, state, chosen, with_locals))
        incident = None
    else:
        taken, incident = _of_last_incident(state, chosen)
        note(f"the run is over: these were taken for incident {incident}")
    if as_json:
        name = state.run.run if state.run is not None else None
        print_json({"schema": SCHEMA, "run": name, "incident": incident, **stacks.as_json(taken)})
    else:
        click.echo(stacks.text(taken))


async def _ask(
    found: runs.RunFolder | runs.Endpoint, state: RunState, ranks: tuple[int, ...], locals_: bool
) -> list[RankStack]:
    """Have the run's agents take stacks now, and wait for all of them."""
    from harness.wire import observer  # grpc is heavy, and only this needs it

    door = door_of(found)
    request = f"{os.getpid()}-{time.time_ns()}"
    from_index = 0 if isinstance(found, runs.Endpoint) else _records(found)
    command = ShowStacks(request=request, ranks=ranks, with_locals=locals_)
    accepted, why = await observer.do(door.address, command, f"cli:{user()}", door.token, door.tls)
    if not accepted:
        raise Refused(f"refused: {why}")
    waiting = _nodes(state, ranks)
    taken: list[RankStack] = []
    records = observer.watch(door.address, from_index, door.token, door.tls)
    until = time.monotonic() + _PATIENCE_SECONDS
    try:
        while waiting:
            _, record = await asyncio.wait_for(anext(records), until - time.monotonic())
            event = record.event
            if isinstance(event, StacksTaken) and event.request == request:
                waiting.discard(event.node_rank)
                taken += event.stacks
            elif isinstance(event, RunEnded):
                break
    except (asyncio.TimeoutError, StopAsyncIteration):
        pass
    finally:
        await records.aclose()  # type: ignore[attr-defined]
    if not taken:
        raise NodeFailure(f"no stacks came within {_PATIENCE_SECONDS:g} s")
    if waiting:
        note(f"nothing came from node {', '.join(map(str, sorted(waiting)))}")
    return taken


def _records(found: runs.RunFolder) -> int:
    """How many records the journal has by now: what comes is not among them."""
    with found.journal.open("rb") as file:
        return max(
            0, sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) - 1
        )


def _nodes(state: RunState, ranks: tuple[int, ...]) -> set[int]:
    attempt = state.attempt
    if attempt is None:
        return {0}
    chosen = ranks or tuple(attempt.ranks)
    nodes = {attempt.ranks[rank].node_rank for rank in chosen if rank in attempt.ranks}
    return nodes - attempt.lost_nodes.keys()


def _of_last_incident(state: RunState, ranks: tuple[int, ...]) -> tuple[list[RankStack], int]:
    if not state.incidents:
        raise TooEarly("the run is over and had no incident, so no stacks were taken")
    incident = state.incidents[-1]
    attempt = state.attempts[incident.verdict.attempt]
    taken = [
        stacks.of_evidence(rank.evidence, rank.pid)
        for rank in attempt.ranks.values()
        if rank.evidence is not None and (not ranks or rank.rank in ranks)
    ]
    if not taken:
        raise TooEarly(f"incident {incident.id} has no stacks of these ranks")
    return taken, incident.id
