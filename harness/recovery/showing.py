"""Stacks on request: who is asked, and when the answer is shown. The run goes on meanwhile."""

from harness import events as e
from harness import orders as o
from harness import stacks
from harness.recovery.ending import Decision
from harness.state import AttemptState, RunState, StackRequest
from harness.topology import ranks_name, ranks_text


def accept_stacks(state: RunState, command: o.ShowStacks) -> tuple[bool, str]:
    """Whether there is anybody whose stack could be taken."""
    attempt = state.attempt
    if attempt is None or state.stage not in ("running", "judging", "stopping"):
        return False, f"no workers are running (the run is {state.stage})"
    if len(attempt.gone) == attempt.world_size:
        return False, "every rank is gone"
    unknown = sorted(set(command.ranks) - attempt.ranks.keys())
    if unknown:
        last = attempt.world_size - 1
        return False, f"there is no rank {ranks_text(unknown)}; the ranks are 0-{last}"
    if command.request in state.stack_requests:
        return False, f"request {command.request!r} is being answered already"
    return True, f"the stacks of {ranks_name(sorted(command.ranks or attempt.ranks))} are taken"


def stack_orders(
    state: RunState, attempt: AttemptState, reachable: set[int], now_ns: int
) -> list[Decision]:
    """Questions to the nodes, and the shown answer once all have said their part, or too late."""
    orders: list[Decision] = []
    for name, request in state.stack_requests.items():
        command = request.command
        concerned = _nodes(attempt, command) & reachable
        ask = o.TakeStacks(request=name, ranks=command.ranks, with_locals=command.with_locals)
        unasked = sorted(concerned - request.asked)
        orders += [e.OrderGiven(node_rank=node, order=ask) for node in unasked]
        waiting = (request.asked & reachable) - request.answers.keys()
        if unasked or command.show_on < 0 or (waiting and now_ns < _due_ns(state, request)):
            continue
        text = stacks.text([stack for answer in _answers(request) for stack in answer.stacks])
        shown = o.Notify(text=text, request=name)
        orders.append(e.OrderGiven(node_rank=command.show_on, order=shown))
    return orders


def shown_by_ns(state: RunState) -> list[int]:
    """When answers that are to be shown no longer wait for the rest."""
    return [
        _due_ns(state, request)
        for request in state.stack_requests.values()
        if request.command.show_on >= 0
    ]


def _answers(request: StackRequest) -> list[e.StacksTaken]:
    return [request.answers[node] for node in sorted(request.answers)]


def _nodes(attempt: AttemptState, command: o.ShowStacks) -> set[int]:
    ranks = command.ranks or attempt.ranks
    return {attempt.ranks[rank].node_rank for rank in ranks if rank in attempt.ranks}


def _due_ns(state: RunState, request: StackRequest) -> int:
    assert state.run is not None
    return request.taken_ns + int(state.run.policy.evidence_budget * 2e9)
