"""Folding what agents tell of the ranks' state that they hold in memory."""

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
