"""In which order a rank works in each pipeline schedule, and where its stages lie.

Those with several stages on a rank are PyTorch's own orders, as the trainer runs them.
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal, get_args

Schedule = Literal["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Kind = Literal["F", "B", "I", "W"]
"""Forward, backward, and the two halves of backward: for the input, for the weights."""
Work = tuple[Kind, int, int]
"""Kind, micro-batch, chunk: one of the stages of this rank."""
_SEVERAL = ("interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipe-v")
_V_SHAPED = ("zbv", "dualpipe-v")


def default_chunks(schedule: Schedule) -> int:
    """Stages on a rank where nobody says. Zero-bubble is drawn as ZB-H1, which has one."""
    return 1 if schedule in ("gpipe", "1f1b", "zero-bubble") else 2


def place_of(schedule: Schedule, rank: int, chunk: int, ranks: int) -> int:
    """Which stage of the whole pipeline a chunk of a rank is: every `ranks`-th, or in a V down the
    ranks and up again."""
    if schedule in _V_SHAPED and chunk:
        return 2 * ranks - 1 - rank
    return chunk * ranks + rank


def check(schedule: Schedule, ranks: int, micro_batches: int, chunks: int) -> None:
    """Raises ValueError: sizes that the schedule cannot have."""
    if schedule not in _SEVERAL and chunks != 1:
        raise ValueError(f"{schedule} has one stage on a rank, not {chunks}")
    if schedule in _V_SHAPED and chunks != 2:
        raise ValueError(f"{schedule} has two stages on a rank, not {chunks}")
    turns = schedule == "interleaved" or (schedule == "zero-bubble" and chunks > 1)
    if turns and micro_batches % ranks:
        raise ValueError(f"{schedule} needs micro-batches in multiples of {ranks} stages")
    if schedule == "dualpipe-v" and micro_batches < 2 * ranks:
        raise ValueError(f"{schedule} needs as many micro-batches as stages, {2 * ranks}")


def order(schedule: Schedule, rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Work]:
    """What one rank does. Weight gradients that zero-bubble of one stage may put anywhere are left
    out."""
    match schedule:
        case "gpipe":
            every = range(micro_batches)
            return [*(("F", i, 0) for i in every), *(("B", i, 0) for i in every)]
        case "1f1b":
            return list(_one_f_one_b(rank, ranks, micro_batches))
        case "interleaved":
            return list(_interleaved(rank, ranks, micro_batches, chunks))
        case "looped-bfs":
            return list(_looped(micro_batches, chunks))
        case "zero-bubble":
            if chunks > 1:
                return list(_interleaved_zero(rank, ranks, micro_batches, chunks))
            simple = _one_f_one_b(rank, ranks, micro_batches)
            return [("I" if kind == "B" else kind, i, chunk) for kind, i, chunk in simple]
        case "zbv":
            return [work for work in _zbv(rank, ranks, micro_batches) if work[1] < micro_batches]
        case "dualpipe-v":
            return list(_DualPipe(rank, ranks, micro_batches).order())


def _one_f_one_b(rank: int, ranks: int, micro_batches: int) -> Iterator[Work]:
    warm = min(micro_batches, ranks - 1 - rank)
    for i in range(warm):
        yield "F", i, 0
    for i in range(micro_batches - warm):
        yield "F", warm + i, 0
        yield "B", i, 0
    for i in range(micro_batches - warm, micro_batches):
        yield "B", i, 0


def _turn(number: int, ranks: int, chunks: int) -> tuple[int, int]:
    """Micro-batch and chunk of the `number`-th pass: `ranks` micro-batches through each chunk in
    turn, as in Megatron."""
    turn, place = divmod(number, ranks * chunks)
    chunk, offset = divmod(place, ranks)
    return turn * ranks + offset, chunk


def _interleaved(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Work]:
    total = micro_batches * chunks

    def work(kind: Kind, number: int) -> Work:
        i, chunk = _turn(number, ranks, chunks)
        return kind, i, chunk if kind == "F" else chunks - 1 - chunk

    warm = min(total, (ranks - rank - 1) * 2 + (chunks - 1) * ranks)
    for number in range(warm):
        yield work("F", number)
    for number in range(total - warm):
        yield work("F", warm + number)
        yield work("B", number)
    for number in range(total - warm, total):
        yield work("B", number)


def _looped(micro_batches: int, chunks: int) -> Iterator[Work]:
    """All micro-batches through a stage before the next (Lamy-Poirier 2022, arXiv:2211.05953)."""
    for chunk in range(chunks):
        for i in range(micro_batches):
            yield "F", i, chunk
    for chunk in reversed(range(chunks)):
        for i in reversed(range(micro_batches)):
            yield "B", i, chunk


def _interleaved_zero(rank: int, ranks: int, micro_batches: int, chunks: int) -> Iterator[Work]:
    """Interleaved with half the warm-up: weight gradients follow `rank` passes later."""
    total = micro_batches * chunks
    warm = min(total, ranks - 1 - rank + (chunks - 1) * ranks)
    later: deque[Work] = deque()
    for number in range(warm):
        yield "F", *_turn(number, ranks, chunks)
    for number in range(total):
        if warm + number < total:
            yield "F", *_turn(warm + number, ranks, chunks)
        i, chunk = _turn(number, ranks, chunks)
        yield "I", i, chunks - 1 - chunk
        later.append(("W", i, chunks - 1 - chunk))
        if number >= rank:
            yield later.popleft()
    yield from later


def _zbv(rank: int, ranks: int, micro_batches: int) -> Iterator[Work]:
    """ZB-V (Qi et al. 2023, arXiv:2401.10241, section 6). Numbers of micro-batches that there are
    not stand for nothing to do."""
    most = max(2 * ranks - 1, micro_batches)
    passed, begun = [0, 0], [0, 0]

    def forward(chunk: int) -> Work:
        passed[chunk] += 1
        return "F", passed[chunk] - 1, chunk

    def back(chunk: int) -> Work:
        begun[chunk] += 1
        return "I", begun[chunk] - 1, chunk

    def both(chunk: int) -> Iterator[Work]:
        yield back(chunk)
        yield "W", begun[chunk] - 1, chunk

    for _ in range(2 * (ranks - rank) - 1):
        yield forward(0)
    for _ in range(rank):
        yield forward(1)
        yield forward(0)
    for _ in range(ranks - rank):
        yield forward(1)
        yield from both(1)
    while passed[1] < passed[0] or passed[0] < most:
        if passed[0] < most:
            yield forward(0)
        yield from both(0)
        yield forward(1)
        yield from both(1)
    behind = list(begun)
    for _ in range(rank):
        yield back(0)
        yield back(1)
    for _ in range(ranks - rank):
        yield back(0)
        yield "W", behind[0], 0
        behind[0] += 1
    for chunk in (1, 0):
        for i in range(behind[chunk], begun[chunk]):
            yield "W", i, chunk


class _DualPipe:
    """DualPipe cut in half: every rank has a stage on the way down and one on the way up (DeepSeek
    2024, arXiv:2412.19437). A forward pass and a backward pass that overlap there are drawn one
    after the other."""

    def __init__(self, rank: int, ranks: int, micro_batches: int) -> None:
        self._rank, self._ranks, self._micro_batches = rank, ranks, micro_batches
        self._passed, self._begun = [0, 0], [0, 0]
        self._later: deque[Work] = deque()

    def order(self) -> Iterator[Work]:
        down, rank = self._ranks - self._rank - 1, self._rank
        for _ in range(2 * down):
            yield self._forward(0)
        for _ in range(rank + 1):
            yield self._forward(0)
            yield self._forward(1)
        for _ in range(down):
            yield self._back(1, halved=True)
            yield from self._weights()
            yield self._forward(1)
        for _ in range(self._micro_batches - 2 * self._ranks + rank + 1):
            yield self._forward(0)
            yield self._back(1)
            yield self._forward(1)
            yield self._back(0)
        for _ in range(down):
            yield self._back(1)
            yield self._forward(1)
            yield self._back(0)
        half = (rank + 1) // 2
        for i in range(rank + 1):
            yield self._back(1, halved=i > half or (i == half and rank % 2 == 1))
            yield self._back(0, halved=i >= half)
        for _ in range(down):
            yield from self._weights()
            yield self._back(0, halved=True)
        for _ in range(rank + 1):
            yield from self._weights()

    def _forward(self, chunk: int) -> Work:
        self._passed[chunk] += 1
        return "F", self._passed[chunk] - 1, chunk

    def _back(self, chunk: int, *, halved: bool = False) -> Work:
        i = self._begun[chunk]
        self._begun[chunk] += 1
        if halved:
            self._later.append(("W", i, chunk))
        return "I" if halved else "B", i, chunk

    def _weights(self) -> Iterator[Work]:
        if self._later:
            yield self._later.popleft()
