"""Preemption: every rank saves at one and the same step, then the run stops."""

from harness import orders as o
from harness.checkpoints import CheckpointMark
from harness.errors import ExitCode
from harness.recovery.ending import Decision, end
from harness.recovery.meeting import agree, propose
from harness.saving import saved_since
from harness.state import AttemptState, Meeting, RunState
from harness.topology import ranks_name

_SIGTERM = 15
_PREEMPTED = "preempted,"


def stop_wanted(
    state: RunState, attempt: AttemptState, reachable: set[int], now_ns: int
) -> o.StopRun | None:
    """The wish to stop the workers now: asked for, or the end of a preemption."""
    if state.stop is not None:
        return state.stop
    if state.preempt is None:
        return None
    why = _why_now(state, attempt, state.preempt, reachable, now_ns)
    return o.StopRun(why=why, signal=_SIGTERM) if why else None


def _why_now(
    state: RunState, attempt: AttemptState, preempt: o.Preempt, reachable: set[int], now_ns: int
) -> str | None:
    """Why there is nothing more to wait for; None while ranks may still save or leave."""
    assert state.run is not None
    if attempt.stop_why.startswith(_PREEMPTED):
        return attempt.stop_why
    if state.stage != "running" or attempt.stop_ordered or not _may_heed(attempt, reachable):
        return preempt.why
    mark = saved(state, attempt)
    lost = attempt.failed - (frozenset() if attempt.stop_at is None else _savers(state, attempt))
    if mark is None and (lost or attempt.lost_nodes):
        gone = lost or {r for node in attempt.lost_nodes for r in attempt.nodes[node].ranks}
        return f"{_PREEMPTED} but {ranks_name(sorted(gone))} failed before all had saved"
    if mark is not None and now_ns >= _leave_by_ns(state, mark):
        return preempt.why
    if now_ns >= _saved_by_ns(state):
        grace = state.run.policy.preempt_grace
        return f"{_PREEMPTED} but not every rank had saved after {grace:g} s"
    return None


def preempt(
    state: RunState, attempt: AttemptState, reachable: set[int], now_ns: int
) -> list[Decision]:
    """Agree with all ranks on a step, and wait for them to save and leave."""
    if len(attempt.gone) == attempt.world_size:
        return _all_gone(state, attempt)
    at = attempt.stop_at
    asked = max(rank.asked_stop for rank in attempt.ranks.values())
    if at is None:
        return propose(o.StopAtStep, attempt, at, reachable, asked)
    return agree(o.StopAtStep, attempt, at, reachable, asked)


def preempted_by_ns(state: RunState, attempt: AttemptState) -> list[int]:
    """Times at which waiting for the ranks ends."""
    mark = saved(state, attempt)
    return [_saved_by_ns(state), *([] if mark is None else [_leave_by_ns(state, mark)])]


def end_preempted(state: RunState, attempt: AttemptState | None) -> list[Decision]:
    """End a preempted run of which a checkpoint was saved; nothing when there is none."""
    mark = None if attempt is None or state.preempt is None else saved(state, attempt)
    if mark is None:
        return []
    reason = f"{_PREEMPTED} checkpoint of step {mark.step} saved"
    return end(state, "stopped", ExitCode.PREEMPTED, reason)


def saved(state: RunState, attempt: AttemptState) -> CheckpointMark | None:
    """The checkpoint that all ranks saved where they were told to stop."""
    at = _agreed(attempt)
    if at is None:
        return None
    whole = saved_since(state, attempt, at.step)
    return whole[-1] if whole else None


def _savers(state: RunState, attempt: AttemptState) -> frozenset[int]:
    """Ranks that have saved where they were told to stop."""
    at = _agreed(attempt)
    marks = state.checkpoints.values() if at is not None else ()
    found = (m.saved_by for m in marks if m.attempt == attempt.index and m.step >= (at or m).step)
    return frozenset().union(*found)


def _agreed(attempt: AttemptState) -> Meeting | None:
    at = attempt.stop_at
    return at if at is not None and at.agreed else None


def _all_gone(state: RunState, attempt: AttemptState) -> list[Decision]:
    """Every rank has left by itself, and none with an error."""
    ended = end_preempted(state, attempt)
    at = _agreed(attempt)
    if ended or at is None or any(r.asked_stop < at.step for r in attempt.ranks.values()):
        return ended or end(state, "succeeded", ExitCode.OK, "every rank finished")
    step = max(rank.asked_stop for rank in attempt.ranks.values())
    return end(
        state,
        "stopped",
        ExitCode.PREEMPTED,
        f"{_PREEMPTED} the script ended by itself after step {step}; it told of no checkpoint",
    )


def _may_heed(attempt: AttemptState, reachable: set[int]) -> bool:
    """Whether the script asks if it should stop, or nobody has looked yet since the wish came."""
    if any(rank.asked_stop >= 0 for rank in attempt.ranks.values()):
        return True
    if any(rank.status == "not_started" for rank in attempt.ranks.values()):
        return False
    answers = {} if attempt.stop_at is None else attempt.stop_at.answers
    return not answers.keys() >= reachable or any(a.furthest >= 0 for a in answers.values())


def _saved_by_ns(state: RunState) -> int:
    assert state.run is not None
    return state.preempt_ns + int(state.run.policy.preempt_grace * 1e9)


def _leave_by_ns(state: RunState, mark: CheckpointMark) -> int:
    assert state.run is not None
    return mark.whole_ns + int(state.run.policy.stop_grace * 1e9)
