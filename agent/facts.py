"""What a worker says on its link, as events."""

from dataclasses import replace
from typing import Any

import msgspec

from harness import events as e
from harness.agent import filecheck, setups, torn
from harness.agent.workers import Worker
from harness.sightings import ExceptionInHand
from harness.topology import MOST_RANKS, Runs, ranks_of

_FACTS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        e.WorkerRaised,
        e.PhaseChanged,
        e.MeshDeclared,
        e.GroupCreated,
        e.CheckpointSaved,
        e.CheckpointFile,
        e.CheckpointLoaded,
        e.CheckpointFailed,
        e.FactsLost,
        e.DoubtRaised,
    )
}


class BadFact(Exception):
    """The fact is none, in words for the console."""


def event_of(worker: Worker, fact: dict[str, Any], node_rank: int) -> e.Event | None:
    """The event to report; None for what the agent keeps for itself. Raises BadFact."""
    kind = fact.pop("type", "")
    if kind == "HookFailed":
        raise BadFact(f"rank {worker.rank}: a hook failed: {fact.get('why')}")
    try:
        if kind == "Handling":
            worker.handling = msgspec.convert(fact["error"], ExceptionInHand | None)
            return None
        if kind == "Stack":
            worker.told_stack(str(fact["text"]))
            return None
        if kind == "SetupTold":
            worker.setup = setups.setup_of(fact)
            return None
        if kind == "CheckpointRefused":
            return msgspec.convert(
                {**fact, "kind": "refused", "node_rank": node_rank}, e.CheckpointFlaw
            )
        if "runs" in fact:
            fact["ranks"] = _members(fact.pop("runs"))
        event: e.Event = msgspec.convert({**fact, "rank": worker.rank}, _FACTS[kind])
    except (KeyError, msgspec.ValidationError) as error:
        raise BadFact(f"rank {worker.rank} sent a bad fact {kind!r}: {error}") from None
    if isinstance(event, e.CheckpointFile) and event.what in ("opened", "saving"):
        torn.note(worker.written, event.path, saved=event.what == "saving")
    if isinstance(event, e.CheckpointFile) and event.what == "load_failed":
        event = replace(event, flaw=_flaw(event.path))
    if isinstance(event, e.WorkerRaised) and not worker.raised.done():
        worker.raised.set_result(None)
    return event


def _members(told: Any) -> tuple[int, ...]:
    """Of a group that is told in runs, as those of thousands have to be."""
    runs = msgspec.convert(told, Runs)
    if sum(abs(count) for _, _, count in runs) > MOST_RANKS:
        raise msgspec.ValidationError(f"a group of more than {MOST_RANKS} ranks")
    return ranks_of(runs)


def _flaw(path: str) -> str:
    try:
        return filecheck.flaw(path)
    except OSError as error:
        return error.strerror or str(error)
