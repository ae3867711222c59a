"""Folding what agents tell of the ranks' state that they hold in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness import events as e
from harness.checkpoints import CheckpointMark
from harness.state.words import AttemptState, RunState


def heard(state: RunState, event: e.MemoryServed | e.MemoryHeld | e.MemoryKept) -> None:
    match event:
        case e.MemoryServed():
            state.memory_addresses[event.node_rank] = event.address
        case e.MemoryHeld():
            _held(state, event)
        case e.MemoryKept():
            _kept(state, event)


def attempt_started(state: RunState, event: e.AttemptStarted) -> None:
    """The agents forget all but what the attempt goes on from."""
    if event.memory_step < 0:
        state.memory.clear()


def _held(state: RunState, event: e.MemoryHeld) -> None:
    node = state.nodes.get(event.node_rank)
    # A word from before the newest attempt speaks of what its agents have forgotten since.
    if node is None or not node.connected or event.attempt != len(state.attempts) - 1:
        return
    state.memory[event.node_rank] = event
    for generation in event.generations:
        if 0 <= generation.attempt < len(state.attempts):
            shards = state.attempts[generation.attempt].shards
            shards.update(zip(generation.own, generation.shards, strict=False))


def _kept(state: RunState, event: e.MemoryKept) -> None:
    if not 0 <= event.attempt < len(state.attempts):
        return
    attempt = state.attempts[event.attempt]
    attempt.kept[event.node_rank] = event
    if event.path:  # from the node that made it count, once all parts were there
        _mark(state, attempt, event)


def _mark(state: RunState, attempt: AttemptState, event: e.MemoryKept) -> None:
    """It is a checkpoint like any other now."""
    state.checkpoints[event.step] = CheckpointMark(
        step=event.step,
        path=event.path,
        saved_by=frozenset(attempt.ranks),
        seconds=0.0,
        attempt=attempt.index,
        whole_ns=state.last_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A generation of which every rank's part is somewhere, or a replica of it. By rank: the node
    that has it, its own rather than a copy. `lost`: those that are nowhere, and the rank that holds
    the same parts and stands in."""

    attempt: int
    step: int
    world_size: int
    where: Mapping[int, int]
    lost: Mapping[int, int]


def whole_generations(state: RunState) -> list[Held]:
    """What the living agents hold together, the newest attempt's first: it may have refused what
    was there before it."""
    places: dict[tuple[int, int], tuple[dict[int, int], dict[int, int]]] = {}
    for node, held in sorted(state.memory.items()):
        for generation in held.generations:
            key = (generation.attempt, generation.step)
            own, copies = places.setdefault(key, ({}, {}))
            own.update(dict.fromkeys(generation.own, node))
            copies.update(dict.fromkeys(generation.copies, node))
    found = []
    for index, step in sorted(places, reverse=True):
        own, copies = places[index, step]
        if not 0 <= index < len(state.attempts):
            continue
        attempt = state.attempts[index]
        ranks = attempt.ranks.keys()
        where = {rank: node for rank, node in (copies | own).items() if rank in ranks}
        twins = {attempt.shards.get(rank): rank for rank in sorted(where, reverse=True)}
        twins.pop(None, None)
        missing = sorted(ranks - where.keys())
        if where and all(attempt.shards.get(rank) in twins for rank in missing):
            lost = {rank: twins[attempt.shards[rank]] for rank in missing}
            world = attempt.world_size
            found.append(Held(attempt=index, step=step, world_size=world, where=where, lost=lost))
    return found
