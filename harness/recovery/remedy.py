"""What to do about a verdict: an action of the catalogue, why, and the exit code if it is to stop.

Restart when it may help, stop when it would only fail again.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness import events as e
from harness.checkpointnames import ASIDE_SUFFIX, finished
from harness.diagnosis import nobody_answers, replicas
from harness.diagnosis.checkpoint_files import FATAL
from harness.diagnosis.exception import TRANSIENT
from harness.diagnosis.leaks import GROWING
from harness.diagnosis.signature import Signature
from harness.diagnosis.texts import needs_other_code
from harness.diagnosis.watched_files import REFUSED, WATCHED, to_set_aside
from harness.errors import ExitCode
from harness.incidents import Action, Incident, Verdict
from harness.policy import Policy
from harness.recovery import spikes
from harness.recovery.ending import STORE_NODE
from harness.recovery.members import going_on_text, may_go_on
from harness.state import RunState
from harness.state.doubts import MASKED
from harness.topology import ranks_text

CODE_ERRORS = frozenset(
    {
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "NotImplementedError",
        "SyntaxError",
        "TabError",
        "UnboundLocalError",
    }
)
"""Exceptions that only other code or another environment can cure, whenever they are raised."""

MAY_PASS = TRANSIENT | {"RuntimeError"}
"""Exceptions that a second try may survive, of some ranks at start-up or of all of them later."""

OUTSIDE_SIGNALS = frozenset({"SIGINT", "SIGKILL", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"})
"""Signals that somebody sends; a program does not come to them by itself."""


_MOST_NAMED = 4
_SOON_OPERATIONS = 200
"""Collectives from a load on in which a bad checkpoint shows itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """`exit_code` is that of the run when `action` is stop."""

    action: Action
    reason: str
    exit_code: int = ExitCode.SCRIPT_FAILED


def incident_of(state: RunState, verdict: Verdict, number: int, now_ns: int) -> Incident:
    """Incident `number`: `verdict`, noticed at `now_ns`, and what is done about it."""
    remedy = choose(state, verdict, now_ns)
    return Incident(
        id=number,
        verdict=verdict,
        action=remedy.action,
        action_reason=remedy.reason,
        exit_code=remedy.exit_code,
        detected_ns=now_ns,
    )


def choose(state: RunState, verdict: Verdict, now_ns: int) -> Remedy:
    """The remedy for `verdict`, before its incident is opened."""
    if state.run is None:
        raise ValueError("a verdict without a run")
    return (
        _by_kind(state, verdict)
        or _by_history(state, verdict, state.run.policy)
        or _by_nodes(state, verdict, state.run)
        or _by_budget(state, verdict, state.run.policy, now_ns)
        or _rollback(state, verdict)
        or _restart(state, verdict)
    )


def _stop(reason: str, exit_code: ExitCode = ExitCode.SCRIPT_FAILED) -> Remedy:
    return Remedy(action="stop", reason=reason, exit_code=exit_code)


def _report(reason: str) -> Remedy:
    return Remedy(action="report", reason=reason)


def _by_kind(state: RunState, verdict: Verdict) -> Remedy | None:
    """Kinds of failure that a restart cannot cure."""
    match verdict.verdict, verdict.family:
        case _, "desync":
            return _stop(
                "the ranks' programs disagree; a restart would come to the same place",
                ExitCode.HANG,
            )
        case "teardown_hang", _:
            return _stop(
                "training is complete on every rank; what is left only holds the machine",
                ExitCode.OK,
            )
        case "stuck_before_first_collective" | "rank_stuck_outside_collective", _:
            return _stop(
                "the program itself waits or runs in circles there; it would come there again",
                ExitCode.HANG,
            )
        case _, "timeout":
            return _stop(
                "the group's timeout is shorter than the work waited for; raise one or move the"
                " other",
                ExitCode.HANG,
            )
        case _, "slow":
            return _report("the run goes on, only slower than it could")
        case _, "leak" if Signature.parse(verdict.signature).what == GROWING:
            return _report("there is time left; nothing is lost by going on until it runs out")
        case "loss_spike", _:
            return _spike(state)
        case _, "numeric":
            return _numeric(verdict)
        case _, "checkpoint" if _refused(verdict):
            return _report(
                "it was passed over; training goes on from an older one, if there is any"
            )
        case _, "checkpoint" if Signature.parse(verdict.signature).what == WATCHED:
            return _report("training goes on; what is not whole is set aside before it resumes")
        case "checkpoint_save_failed", _ if Signature.parse(verdict.signature).what != FATAL:
            return _report("training goes on; it would lose what no checkpoint holds")
        case "checkpoint_step_mismatch", _ if _loaded_flawed(state):
            return None
        case "checkpoint_step_mismatch", _:
            return _stop("the ranks would train on from different steps; remove what is not whole")
        case "checkpoint_corrupt", _:
            return _unless_older(state, verdict)
        case "port_in_use", _:
            return _stop("another process holds the port; restarting frees nothing", ExitCode.USAGE)
        case "deterministic_failure", _:
            return _stop("every rank fails in the same way at start-up; it would only fail again")
        case "rank_exited_early", _:
            return _stop("the rank ran out of work before the others; it would leave early again")
        case "exception_hidden_by_cleanup", _:
            return _stop("its clean-up waits for ranks that cannot come; it would hang again")
        case "teardown_abort", _:
            return _report("the script had ended; there is nothing left to restart")
        case "exception", _:
            return _exception(state, verdict)
        case "out_of_memory", _ if verdict.step == 0:
            return _stop(
                "memory did not suffice for the first step; it would not the next time",
                ExitCode.OUT_OF_MEMORY,
            )
    return None


def _refused(verdict: Verdict) -> bool:
    """Whether ranks that were to load it have done without it already."""
    signature = Signature.parse(verdict.signature)
    return signature.what == WATCHED and signature.detail.startswith(f"{REFUSED} ")


def _numeric(verdict: Verdict) -> Remedy | None:
    """None where the numbers were right before: then they can be had back."""
    what = Signature.parse(verdict.signature).what
    match verdict.verdict:
        case "nondeterminism":
            return _report("the program computes so on every device; training goes on")
        case "buffers_differ":
            return _report("each rank's statistics are right for its own data; training goes on")
        case "replica_divergence" | "unexpected_replication" if what == replicas.LEARNT_ONLY:
            return _report("whether these are replicas is learnt from the run, nobody declares it")
        case "replica_divergence" | "tp_replicated_param_divergence" | "unexpected_replication":
            return _stop("the program itself makes them so; it would again", ExitCode.CORRUPTION)
        case _:
            return None


def _spike(state: RunState) -> Remedy | None:
    """None where there is something to go back to, and that has not been tried."""
    again = spikes.again(state)
    if again:
        return _stop(again, ExitCode.CORRUPTION)
    loaded = state.attempt is not None and state.attempt.loaded
    if state.clean_restore_point is None and not loaded and not _kept(state, _tainted(state)):
        return _report("no checkpoint from before it is known of; training goes on")
    return None


def _exception(state: RunState, verdict: Verdict) -> Remedy | None:
    signature = Signature.parse(verdict.signature)
    exc_type = signature.what.rpartition(".")[2]
    if exc_type in CODE_ERRORS:
        return _stop(f"{exc_type} comes from the code or its environment; it would be raised again")
    asks = nobody_answers.asked(exc_type, signature.detail)
    if asks:
        return _stop(f"{asks}; no attempt has a stdin")
    if needs_other_code(f"{signature.detail} {verdict.cause}"):
        return _stop("torch says that the models are not the same; they would not be again")
    if signature.start_up and exc_type not in MAY_PASS:
        return _stop(f"{exc_type} before the first collective; the start-up would fail again")
    ranks = 0 if state.attempt is None else len(state.attempt.ranks)
    if len(verdict.first_failing) == ranks > 1 and exc_type not in MAY_PASS:
        return _stop(f"every rank raised the same {exc_type} at the same place; it would again")
    return None


def _by_history(state: RunState, verdict: Verdict, policy: Policy) -> Remedy | None:
    """The loop breaker: the same failure at the same step."""
    if verdict.verdict == "node_lost":
        return None  # a machine that goes says nothing of the program
    same = _same_failures(state.incidents, verdict)
    limit = policy.same_failure_limit
    if len(same) + 1 < limit or not _comparable(verdict):
        return None
    attempts = ranks_text([*(incident.verdict.attempt for incident in same), verdict.attempt])
    step, group, seq = _place(verdict)
    at = f"after step {step}" if step else f"collective #{seq} of {group}" if group else "no step"
    return _stop(
        f"the same failure again at the same place ({at}, attempts {attempts}); restarting does not"
        " help",
        _own_code(verdict, ExitCode.GAVE_UP),
    )


def _same_failures(incidents: Iterable[Incident], verdict: Verdict) -> list[Incident]:
    """The unbroken row of equal failures right before this one."""
    same: list[Incident] = []
    for incident in reversed(list(incidents)):
        if incident.action == "report":
            continue
        earlier = incident.verdict
        if earlier.signature != verdict.signature or _place(earlier) != _place(verdict):
            break
        same.append(incident)
    return same


def _place(verdict: Verdict) -> tuple[int, str, int]:
    """The step; where none is counted, the collective that the ranks had come to."""
    ref = verdict.collective
    if verdict.step > 0 or ref is None:
        return verdict.step, "", 0
    return 0, ref.pg_desc or ref.pg, ref.seq_id


def _comparable(verdict: Verdict) -> bool:
    """Whether an equal place and signature mean the same failure: where no place is known and
    the signal came from outside, two kills have nothing in common but the rank."""
    if _place(verdict) != (0, "", 0):
        return True
    return Signature.parse(verdict.signature).what not in OUTSIDE_SIGNALS


def _by_budget(state: RunState, verdict: Verdict, policy: Policy, now_ns: int) -> Remedy | None:
    if policy.max_restarts <= 0:
        return _stop("no restarts are allowed (--max-restarts 0)", _own_code(verdict))
    since_ns = now_ns - int(policy.restart_window * 1e9)
    restarts = sum(
        after.started_ns >= since_ns
        for before, after in zip(state.attempts, state.attempts[1:], strict=False)
        if before.regroup is None
    )
    if restarts >= policy.max_restarts:
        return _stop(
            f"all {policy.max_restarts} restarts allowed within"
            f" {policy.restart_window:g} s are used up",
            _own_code(verdict, ExitCode.GAVE_UP),
        )
    return None


def _by_nodes(state: RunState, verdict: Verdict, run: e.RunStarted) -> Remedy | None:
    """Whether there are nodes to go on with."""
    if may_go_on(state, run):
        return None
    lost = sorted(node.node_rank for node in state.nodes.values() if not node.connected)
    again = "run again, and training goes on from its last checkpoint"
    if STORE_NODE in lost and run.nnodes > 1:
        why = f"node {STORE_NODE} is lost, and the run's controller and store with it; {again}"
    elif verdict.verdict == "node_lost":
        why = f"the ranks of the lost node have no place to run; {again}"
        why += " (--nnodes MIN:MAX or --spares K would have gone on)" if run.nnodes > 1 else ""
    else:
        why = f"node {ranks_text(lost)} is lost as well"
    return _stop(why, ExitCode.NODE_LOST)


def _own_code(verdict: Verdict, otherwise: ExitCode = ExitCode.SCRIPT_FAILED) -> ExitCode:
    if verdict.family == "stuck":
        return ExitCode.HANG
    if verdict.verdict == "silent_data_corruption":
        return ExitCode.CORRUPTION
    if verdict.verdict == "node_lost" and otherwise is ExitCode.SCRIPT_FAILED:
        return ExitCode.NODE_LOST
    return ExitCode.OUT_OF_MEMORY if verdict.verdict == "out_of_memory" else otherwise


def _unless_older(state: RunState, verdict: Verdict) -> Remedy | None:
    """To stop, when the script has no older checkpoint to fall back on."""
    failed = {file.path for file in _unreadable(state, verdict)}
    if aside(state, verdict).keys() & failed:
        return None
    return _stop("there is no older checkpoint of that name; the same file would fail again")


def _unreadable(state: RunState, verdict: Verdict) -> list[e.CheckpointFile]:
    """What the ranks could not load last."""
    attempt = state.attempt
    assert attempt is not None
    found = []
    for rank in verdict.first_failing:
        done = reversed(attempt.files.get(rank, []))
        found += [file for file in done if file.what == "load_failed"][:1]
    return found


def _loaded_flawed(state: RunState) -> bool:
    """Whether a rank went on from files that are known to be bad, with older ones there."""
    attempt = state.attempt
    assert attempt is not None
    bad = to_set_aside([attempt])
    loaded = [file.path for file, _ in attempt.loaded.values()]
    return any(path == of or path.startswith(f"{of}/") for path in loaded for of in bad)


def _rollback(state: RunState, verdict: Verdict) -> Remedy | None:
    """To a checkpoint before one that is bad, by giving that one another name."""
    paths = aside(state, verdict)
    if verdict.verdict == "silent_data_corruption" or _masked(verdict):
        return Remedy(action="rollback", reason=_clean_text(state, paths))
    if not paths:
        return None
    names = ", ".join(sorted({os.path.basename(path) for path in paths}))
    why = {
        "checkpoint_corrupt": "cannot be read",
        "nonfinite": "was loaded shortly before; its numbers are the first suspects",
    }.get(verdict.verdict, "is not whole")
    return Remedy(
        action="rollback",
        reason=f"{names} {why}; it gets the suffix {ASIDE_SUFFIX} and the one before it counts",
    )


def _masked(verdict: Verdict) -> bool:
    """Whether a rank's own check has found it: then it is known since when."""
    return Signature.parse(verdict.signature).what == MASKED


def _clean_text(state: RunState, paths: Mapping[str, int]) -> str:
    """What the next attempt begins from after a corruption."""
    point, said = state.clean_restore_point, []
    kept = _kept(state, paths)
    if point is not None:
        vouched = any(point.path in attempt.replicas.vouched for attempt in state.attempts)
        word = "certified " if vouched else ""
        said.append(f"the {word}checkpoint of step {point.step} is from before it")
    elif kept:
        saved_ns = state.attempt.replicas.saved_ns if state.attempt is not None else {}
        newest = max(kept, key=lambda path: saved_ns[path])
        said.append(f"{finished(os.path.basename(newest))} is from before it")
    if paths:
        names = sorted({finished(os.path.basename(path)) for path in paths})
        shown = ", ".join(names[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        said.append(f"saved since then and given the suffix {ASIDE_SUFFIX}: {shown}{more}")
    return "; ".join(said) or "no checkpoint is known of; the script starts anew"


def _kept(state: RunState, paths: Mapping[str, int]) -> set[str]:
    """What the script has saved for itself in this attempt, without `paths`."""
    return set() if state.attempt is None else state.attempt.replicas.saved_ns.keys() - paths.keys()


def _tainted(state: RunState) -> dict[str, int]:
    """Checkpoints of this attempt that were saved after the last look at which all was well, by
    the node to tell."""
    attempt = state.attempt
    clean_ns = None if attempt is None else attempt.clean_ns
    if attempt is None or clean_ns is None:
        return {}
    lowest = attempt.ranks[min(attempt.ranks)].node_rank
    found = {
        mark.path: lowest
        for mark in state.checkpoints.values()
        if mark.attempt == attempt.index
        and (len(mark.saved_by) < attempt.world_size or mark.whole_ns > clean_ns)
    }
    for path, (at_ns, rank) in attempt.replicas.saved_ns.items():
        if at_ns > clean_ns:
            found[path] = attempt.ranks[rank].node_rank
    return found


def aside(state: RunState, verdict: Verdict) -> dict[str, int]:
    """Checkpoint files of the script that the next attempt must not take, by the node to tell."""
    attempt = state.attempt
    if attempt is None:
        return {}
    if verdict.verdict == "silent_data_corruption" or _masked(verdict):
        return _tainted(state)
    found: dict[str, int] = {}
    for number in verdict.first_failing:
        rank = attempt.ranks.get(number)
        if rank is None:
            continue
        paths = list(rank.exited.torn) if rank.exited is not None else []
        if verdict.verdict == "nonfinite" and number in attempt.loaded:
            file, begun = attempt.loaded[number]
            if file.older and rank.collectives - begun <= _SOON_OPERATIONS:
                paths.append(file.path)
        found.update(dict.fromkeys(paths, rank.node_rank))
    if verdict.verdict == "checkpoint_corrupt":
        for file in _unreadable(state, verdict):
            if file.older:
                found[file.path] = attempt.ranks[file.rank].node_rank
    return found | to_set_aside(state.attempts)


def _restart(state: RunState, verdict: Verdict) -> Remedy:
    assert state.run is not None
    policy = state.run.policy
    number = sum(attempt.regroup is None for attempt in state.attempts)
    nodes = going_on_text(state, state.run)
    help = "" if verdict.verdict == "node_lost" and nodes else _may_help(verdict)
    why = "; ".join(filter(None, (nodes, help)))
    return Remedy(
        action="restart",
        reason=f"{why} (restart {number}; {policy.max_restarts} are allowed in"
        f" {policy.restart_window:g} s)",
    )


def _may_help(verdict: Verdict) -> str:
    match verdict.verdict:
        case "killed_by_signal":
            return "a killed process says nothing against the program"
        case "out_of_memory":
            return "memory sufficed for earlier steps; a fresh process starts without the growth"
        case "rank_frozen":
            return "a stopped process says nothing against the program; a fresh one runs"
        case "rank_stuck_in_io":
            return "the device or file system may answer the next time"
        case "dataloader_stuck":
            return "a data loader that got stuck may run through the next time"
        case "network_stall":
            return "new connections may hold where these did not"
        case "resource_leak_fd":
            return "a fresh process starts with few open files; the growth begins anew"
        case "checkpoint_save_failed":
            return "there may be room for it the next time"
        case "dataloader_worker_died":
            return "a data loader's worker that died may live the next time"
        case _:
            return "the failure may have been of the moment"
