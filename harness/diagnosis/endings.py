"""How each rank of an attempt ended, in one word, with the time and the text that says so.

Order in time comes from the ranks' own nanosecond stamps: processes exit in another order than
they fail, a slow exit handler is enough.
"""

import json
import signal
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from harness import events as e
from harness.diagnosis.texts import headline, is_cry, is_timeout, last_exception
from harness.incidents import EvidenceRef, Where
from harness.state import AttemptState, RankState

Kind = Literal["raised", "cried", "timed_out", "signal", "code", "left", "lost"]
"""raised: an exception of its own. cried: it says only that a peer is gone. timed_out: it says
only that others did not come. signal: killed. code: left with an error code and said nothing.
left: exit code 0. lost: its node is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`what` is an exception type, a signal's name, or `exit code N`; `text` all that was said."""

    rank: int
    kind: Kind
    at_ns: int
    what: str = ""
    message: str = ""
    text: str = ""
    where: Where | None = None
    start_up: bool = False
    """It had come to no collective and no step."""
    step: int = 0
    phase: str = ""
    oom: str | None = None
    rss_bytes: int = 0
    evidence: tuple[EvidenceRef, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind != "left"

    @property
    def says(self) -> str:
        """`ValueError: text`, `SIGKILL`, `exit code 3`."""
        return f"{self.what}: {headline(self.message)}" if self.message else self.what


def endings(attempt: AttemptState) -> dict[int, Ending]:
    """The ranks that have ended or are about to, by rank."""
    found: dict[int, Ending] = {}
    for number in sorted(attempt.failed | attempt.gone):
        rank = attempt.ranks.get(number)
        ending = None if rank is None else _ending(attempt, rank)
        if ending is not None:
            found[number] = ending
    return found


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def log_file(attempt: int, rank: int) -> str:
    """The rank's whole log, relative to the run directory."""
    return f"logs/attempt{attempt}/rank{rank:05d}.log"


def _ending(attempt: AttemptState, rank: RankState) -> Ending | None:
    if rank.raised is not None:
        return _raised(attempt, rank, rank.raised)
    if rank.exited is None:
        lost = rank.node_rank in attempt.lost_nodes
        return _lost(attempt, rank) if lost else None
    if rank.exited.ordered:
        return None
    if rank.exited.signal is not None:
        return _killed(attempt, rank, rank.exited, rank.exited.signal)
    if rank.exited.exit_code == 0:
        left_ns = rank.phase_ns if rank.phase == "teardown" and rank.phase_ns else 0
        return Ending(
            rank=rank.rank,
            kind="left",
            at_ns=left_ns or rank.exited.exited_ns,
            what="left with exit code 0",
            step=rank.step,
            phase=rank.phase,
            evidence=_refs(attempt, rank, exited="left with exit code 0"),
        )
    return _coded(attempt, rank, rank.exited)


def _raised(attempt: AttemptState, rank: RankState, raised: e.WorkerRaised) -> Ending:
    exited = rank.exited
    what, message = raised.exc_type, raised.message
    kind = _kind_of_error(f"{what}: {message}", raised.traceback, raised.cause)
    if what == "KeyboardInterrupt":
        kind, what = "signal", "SIGINT"
    elif what == "SystemExit":
        message = _exit_message(rank, message)
    return Ending(
        rank=rank.rank,
        kind=kind,
        at_ns=raised.raised_ns,
        what=what,
        message=message,
        text=f"{what}: {message}\n{raised.traceback}\n{raised.cause}",
        where=raised.where,
        start_up=raised.collectives == 0 and raised.step == 0,
        step=max(raised.step, rank.step),
        phase=rank.phase,
        oom=None if exited is None else exited.oom,
        rss_bytes=0 if exited is None else exited.max_rss_bytes,
        evidence=_refs(attempt, rank, raised=f"raised {raised.exc_type}"),
    )


def _exit_message(rank: RankState, code: str) -> str:
    """`sys.exit(2)` says nothing; what was printed before it often does."""
    lines = rank.evidence.last_lines if rank.evidence is not None else ()
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{code}; its last line was: {said}" if said and said not in code else code


# Thousands of ranks are judged again with every word of one more.
@lru_cache(maxsize=1 << 15)
def _kind_of_error(said: str, traceback: str, cause: str) -> Kind:
    """A chain that begins with a cry is a cry, whatever was raised on top of it."""
    frames = [line for line in traceback.splitlines() if line.lstrip().startswith("File ")]
    innermost = frames[-1] if frames else ""
    if "torch/distributed/" in innermost or "_engine_run_backward" in innermost:
        said = f"torch.distributed {said}"
    for text in (said, cause):
        if is_timeout(text):
            return "timed_out"
        if is_cry(text):
            return "cried"
    return "raised"


def _killed(attempt: AttemptState, rank: RankState, exited: e.WorkerExited, number: int) -> Ending:
    said = "\n".join(rank.evidence.last_lines) if rank.evidence is not None else ""
    name = signal_name(number)
    # A C++ thread that meets a closed connection aborts the process: that, too, is a cry.
    cried = name == "SIGABRT" and is_cry(said)
    return Ending(
        rank=rank.rank,
        kind="cried" if cried else "signal",
        at_ns=exited.exited_ns,
        what=name,
        text=said,
        where=None if rank.evidence is None else rank.evidence.user_frame,
        start_up=rank.step == 0 and _no_collectives(rank),
        step=rank.step,
        phase=rank.phase,
        oom=exited.oom,
        rss_bytes=exited.max_rss_bytes,
        evidence=_refs(attempt, rank, exited=f"killed by {name}"),
    )


def _coded(attempt: AttemptState, rank: RankState, exited: e.WorkerExited) -> Ending:
    """An error code without a word to us: what the error file or the log says instead."""
    code = f"exit code {exited.exit_code}"
    lines = rank.evidence.last_lines if rank.evidence is not None else ()
    told = _error_file(exited.error_file)
    logged = last_exception(told.splitlines() if told else lines) or last_exception(lines)
    kind: Kind = "code"
    what, message, where = code, "", None
    if logged is not None:
        kind = _kind_of_error(f"{logged.exc_type}: {logged.message}", logged.text, "")
        what, message, where = logged.exc_type, logged.message, logged.where
    elif told:
        kind = _kind_of_error(told, "", "")
        message = headline(told)
    return Ending(
        rank=rank.rank,
        kind=kind,
        at_ns=exited.exited_ns,
        what=what,
        message=message,
        text="\n".join([told, *lines]),
        where=where,
        start_up=rank.step == 0 and _no_collectives(rank),
        step=rank.step,
        phase=rank.phase,
        oom=exited.oom,
        rss_bytes=exited.max_rss_bytes,
        evidence=_refs(attempt, rank, exited=f"left with {code}"),
    )


def _lost(attempt: AttemptState, rank: RankState) -> Ending:
    return Ending(
        rank=rank.rank,
        kind="lost",
        at_ns=attempt.trouble_ns,
        what="node lost",
        message=attempt.lost_nodes[rank.node_rank],
        step=rank.step,
        phase=rank.phase,
    )


def _no_collectives(rank: RankState) -> bool:
    """No flight record shows one. Its absence alone would not say so."""
    return rank.evidence is not None and not rank.evidence.collectives and rank.phase == "init"


def _error_file(content: str | None) -> str:
    """What `@record` wrote: the traceback where there is one, else the message."""
    if not content:
        return ""
    try:
        message = json.loads(content)["message"]
    except (ValueError, TypeError, KeyError):
        return headline(content)
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        return str(stack or message.get("message") or "")
    return str(message)


def _refs(attempt: AttemptState, rank: RankState, **shows: str) -> tuple[EvidenceRef, ...]:
    """References to the records behind `rank`'s state, the named one first, and to its log."""
    refs = [
        EvidenceRef(source=source, seq=seq, shows=f"rank {rank.rank} {text}")
        for name, text in shows.items()
        if name in rank.refs
        for source, seq in (rank.refs[name],)
    ]
    if refs:
        last = refs[-1]
        refs.append(
            EvidenceRef(
                source=last.source,
                seq=last.seq,
                shows=f"log of rank {rank.rank}",
                file=log_file(attempt.index, rank.rank),
            )
        )
    return tuple(refs)
