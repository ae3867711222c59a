"""Everything known of one rank, as lines of text: the screen behind Enter. Pure."""

from dataclasses import dataclass
from typing import Literal

from harness.events import EvidenceTaken
from harness.state import RankState, RunState
from harness.tui.cells import MEANINGS, Cell
from harness.tui.view import View
from harness.tui.wording import clean, exit_text, frame_text, loss_text, rank_name

Weight = Literal["title", "head", "text", "dim", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailLine:
    text: str
    weight: Weight = "text"


def rank_detail(
    state: RunState, view: View, rank: int, log: tuple[str, ...]
) -> tuple[DetailLine, ...]:
    """What is known of `rank`: state, how it ended, exception, stack, collectives, last output.

    `log` holds the last lines of its log, oldest first.
    """
    cell = next((cell for cell in view.cells if cell.rank == rank), None)
    attempt = state.attempt
    known = attempt.ranks.get(rank) if attempt is not None else None
    if cell is None or known is None:
        return (DetailLine(text=f"rank {rank} is not part of this run", weight="bad"),)
    lines = [DetailLine(text=rank_name(state, rank), weight="title")]
    lines += _facts(state, cell, known)
    lines += _failure(known)
    evidence = known.evidence
    if evidence is not None:
        lines += _stack(evidence)
        lines += _collectives(evidence)
    output = log or (evidence.last_lines if evidence is not None else ())
    if output:
        lines += [DetailLine(text=""), DetailLine(text="last output", weight="head")]
        lines += [DetailLine(text=f"  {clean(line)}") for line in output]
    return tuple(lines)


def _facts(state: RunState, cell: Cell, rank: RankState) -> list[DetailLine]:
    culprit = cell.state in ("dead", "hung", "mismatch", "corrupt", "oom")
    lines = [DetailLine(text=_meaning(cell), weight="bad" if culprit else "text")]
    node = state.nodes.get(rank.node_rank)
    place = f"node {rank.node_rank}" + (f" {clean(node.host)}" if node is not None else "")
    pid = f"pid {rank.pid}" if rank.pid else "no process yet"
    lines.append(DetailLine(text=f"{place}, local rank {rank.local_rank}, {pid}"))
    steps = f"step {rank.step}" + (f" of {rank.total_steps}" if rank.total_steps else "")
    loss = loss_text(rank.loss, rank.loss_finite)
    parts = [steps, f"phase {cell.phase}", f"loss {loss}" if loss else ""]
    if rank.tokens:
        parts.append(f"{rank.tokens:,} tokens")
    lines.append(DetailLine(text=", ".join(part for part in parts if part)))
    facts = rank.evidence.process if rank.evidence is not None else None
    if facts is not None:
        sleep = f" in {clean(facts.wchan)}" if facts.wchan else ""
        lines.append(
            DetailLine(
                text=f"process state {clean(facts.state)}{sleep}, {facts.threads} threads, "
                f"{facts.cpu_seconds:.1f} s CPU, {facts.rss_bytes / 2**20:.0f} MiB"
            )
        )
    return lines


def _meaning(cell: Cell) -> str:
    meaning = MEANINGS[cell.state]
    word = cell.state.replace("_", " ")
    return meaning if meaning.startswith(word) else f"{word}: {meaning}"


def _failure(rank: RankState) -> list[DetailLine]:
    lines: list[DetailLine] = []
    if rank.exited is not None:
        told = " after it was told to stop" if rank.exited.ordered else ""
        lines.append(DetailLine(text=f"it {exit_text(rank.exited)}{told}"))
    if rank.raised is not None:
        raised = rank.raised
        lines += [
            DetailLine(text=""),
            DetailLine(text=f"{clean(raised.exc_type)}: {clean(raised.message)}", weight="bad"),
        ]
        if raised.where is not None:
            where = raised.where
            place = f"{clean(where.file)}:{where.line} in {clean(where.function)}"
            lines.append(DetailLine(text=f"at {place}"))
        if raised.cause:
            lines.append(DetailLine(text=f"because of {clean(raised.cause)}"))
        trace = [line for line in raised.traceback.splitlines() if line.strip()]
        lines += [DetailLine(text=f"  {clean(line)}", weight="dim") for line in trace]
    return lines


def _stack(evidence: EvidenceTaken) -> list[DetailLine]:
    lines: list[DetailLine] = []
    if evidence.frames:
        by = f" (by {clean(evidence.frames_by)})" if evidence.frames_by else ""
        lines.append(DetailLine(text=""))
        lines.append(DetailLine(text=f"main thread, innermost first{by}", weight="head"))
        lines += [DetailLine(text=f"  {frame_text(frame)}") for frame in evidence.frames]
    lines += [DetailLine(text=f"missing: {clean(m)}", weight="dim") for m in evidence.missing]
    return lines


def _collectives(evidence: EvidenceTaken) -> list[DetailLine]:
    if not evidence.collectives:
        return []
    lines = [DetailLine(text=""), DetailLine(text="last collectives, newest first", weight="head")]
    for entry in reversed(evidence.collectives[-8:]):
        group = clean(entry.pg_desc or entry.pg)
        sizes = " ".join("x".join(map(str, size)) or "scalar" for size in entry.sizes)
        state = "done" if entry.retired else entry.state
        lines.append(
            DetailLine(
                text=f"  {clean(entry.op)} #{entry.seq_id} on {group}  {sizes} "
                f"{' '.join(entry.dtypes)}  {state}"
            )
        )
    return lines
