"""How things are said in one line: ranks, places, times, endings. Pure.

Whatever came from the user's program goes through `clean` before it is drawn.
"""

import re
from collections.abc import Mapping, Sequence

from harness.events import WorkerExited
from harness.incidents import Where
from harness.sightings import Frame
from harness.state import RunState
from harness.topology import coordinates_text, ranks_text

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """`text` on one line, safe to draw: no escape sequences, no control characters."""
    text = _ESCAPE.sub("", text).replace("\t", "    ").replace("\r", "").replace("\n", " ")
    return _CONTROL.sub("\ufffd", text)


def short_path(path: str) -> str:
    """The last two parts of an absolute path, for lines with little room."""
    parts = clean(path).split("/")
    return "/".join(parts[-2:]) if path.startswith("/") and len(parts) > 3 else clean(path)


def frame_text(frame: Frame) -> str:
    """`reduce_and_clip  trainer/optim.py:77`: short enough that the line is still seen."""
    function = clean(frame.function).rpartition("<locals>.")[2]
    return f"{function}  {short_path(frame.file)}:{frame.line}"


def duration_text(seconds: float) -> str:
    """`2471.3` as `00:41:11`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def loss_text(loss: float | None, finite: bool = True) -> str:
    if not finite:
        return "not finite"
    return "" if loss is None else f"{loss:.4g}"


def exit_text(exited: WorkerExited) -> str:
    """How a worker left, as the end of a sentence about it."""
    if exited.oom:
        return f"ran out of memory ({exited.oom})"
    if exited.signal is not None:
        return f"was killed by signal {exited.signal}"
    return f"exited with code {exited.exit_code}"


def place_text(axes: Sequence[tuple[str, int]], coordinates: Mapping[str, int]) -> str:
    """Coordinates as text, without the axes of size 1: they tell nothing apart."""
    flat = {name for name, size in axes if size == 1}
    return coordinates_text({n: value for n, value in coordinates.items() if n not in flat})


def rank_name(state: RunState, rank: int) -> str:
    """`rank 5 (dp1 pp0 tp1, host-a)`: what is known of the place of a rank."""
    parts = [place_text(axes_of(state), state.coordinates.get(rank, {}))]
    attempt = state.attempt
    known = attempt.ranks.get(rank) if attempt is not None else None
    node = state.nodes.get(known.node_rank) if known is not None else None
    if node is not None and len(state.nodes) > 1:
        parts.append(f"node {node.node_rank} {node.host}")
    inside = ", ".join(part for part in parts if part)
    return f"rank {rank} ({inside})" if inside else f"rank {rank}"


def axes_of(state: RunState) -> tuple[tuple[str, int], ...]:
    mesh = state.mesh
    return () if mesh is None else tuple(zip(mesh.names, mesh.sizes, strict=True))


def where_text(where: Where | None) -> str:
    if where is None:
        return ""
    return f"{short_path(where.file)}:{where.line} in {clean(where.function)}"


def who_text(state: RunState, ranks: Sequence[int], coordinates: Mapping[str, int]) -> str:
    if not ranks:
        return "no single rank"
    if len(ranks) > 1:
        return f"ranks {ranks_text(ranks)}"
    if coordinates and ranks[0] not in state.coordinates:
        return f"rank {ranks[0]} ({place_text(axes_of(state), coordinates)})"
    return rank_name(state, ranks[0])


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
