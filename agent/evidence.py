"""What can be seen of one rank, taken before anything is killed."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from harness.agent import flight, processes, stacks
from harness.agent.workers import Worker
from harness.collectives import Collective
from harness.events import EvidenceTaken, Frame, ProcessFacts

_SERVER_SECONDS = 2.0
_SPY_SECONDS = 3.0
_MOST_FRAMES = 64
_LAST_LINES = 20
_KEPT_LINES = 500
_TAIL_BYTES = 256 * 1024
_LINE_LIMIT = 500
FROZEN = ("T", "t")


class Taker:
    """Takes the evidence of one rank for one collection, until `deadline` (monotonic seconds)."""

    def __init__(self, worker: Worker, collection: int, run_dir: Path, deadline: float) -> None:
        self._worker = worker
        self._collection = collection
        self._run_dir = run_dir
        self._folder = run_dir / "incidents" / f"{collection + 1:03d}"
        self._deadline = deadline
        self._files: list[str] = []
        self._missing: list[str] = []
        self._frames: tuple[Frame, ...] = ()
        self._frames_by = ""
        self._collectives: tuple[Collective, ...] = ()

    async def take(self) -> EvidenceTaken:
        """All that could be had. Never raises: what could not be had is said in `missing`."""
        worker = self._worker
        facts = process_facts(worker.pid) if worker.alive else None
        if worker.alive:
            await asyncio.gather(self._stack(facts), self._flight(facts))
        else:
            self._of_the_dead()
        lines = self._last_lines()
        return EvidenceTaken(
            collection=self._collection,
            rank=worker.rank,
            process=facts,
            frames=self._frames[:_MOST_FRAMES],
            frames_by=self._frames_by,
            user_frame=stacks.user_frame(self._frames),
            collectives=self._collectives[-flight.MOST_ENTRIES :],
            last_lines=lines,
            files=tuple(self._files),
            missing=tuple(self._missing),
        )

    def _left(self, at_most: float) -> float:
        return max(0.05, min(at_most, self._deadline - time.monotonic()))

    async def _stack(self, facts: ProcessFacts | None) -> None:
        pid = self._worker.pid
        try:
            report = await asyncio.to_thread(stacks.spy, pid, self._left(_SPY_SECONDS))
            self._keep("stacks", "json", report)
            self._frames, self._frames_by = stacks.main_thread(report, pid), "py-spy"
            return
        except stacks.NoStack as no_stack:
            problem = str(no_stack)
        if self._worker.guest and facts is not None and facts.state not in FROZEN:
            try:
                text = await flight.ask(
                    self._worker.files.server, "dump_traceback", self._left(_SERVER_SECONDS)
                )
                self._keep("stacks", "txt", text)
                self._frames = stacks.from_faulthandler(text.decode("utf-8", "replace"))
                self._frames_by = "dump_traceback"
                if self._frames:
                    return
            except flight.Unanswered as unanswered:
                problem = f"{problem}; {unanswered}"
        self._missing.append(f"stack: {problem}")

    async def _flight(self, facts: ProcessFacts | None) -> None:
        if not self._worker.guest:
            self._missing.append("flight record: the program runs without Harness's guest")
            return
        if facts is not None and facts.state in FROZEN:
            self._missing.append("flight record: the process is stopped and cannot answer")
            return
        try:
            data = await flight.ask(
                self._worker.files.server, "fr_trace_json", self._left(_SERVER_SECONDS)
            )
        except flight.Unanswered as unanswered:
            self._missing.append(f"flight record: {unanswered}")
            return
        self._read_flight(data)

    def _read_flight(self, data: bytes) -> None:
        self._keep("flight", "json", data)
        try:
            self._collectives = flight.parse(data)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            self._missing.append(f"flight record: cannot be read ({error})")

    def _of_the_dead(self) -> None:
        """A rank that is gone: what it left in files."""
        files = self._worker.files
        text = _read(files.fatal)
        if text:
            self._keep("stacks", "txt", text)
            self._frames = stacks.from_faulthandler(text.decode("utf-8", "replace"))
            self._frames_by = "faulthandler"
        else:
            self._missing.append(f"stack: the process is gone ({self._worker.exit_text})")
        record = _read(files.last_record)
        if record:
            self._read_flight(record)
        else:
            self._missing.append(f"flight record: the process is gone ({self._worker.exit_text})")

    def _last_lines(self) -> tuple[str, ...]:
        lines = tail(self._worker.files.log, _KEPT_LINES)
        if lines:
            self._keep("logs", "log", ("\n".join(lines) + "\n").encode())
        return tuple(line[:_LINE_LIMIT] for line in lines[-_LAST_LINES:])

    def _keep(self, kind: str, suffix: str, data: bytes) -> None:
        path = self._folder / kind / f"rank{self._worker.rank:05d}.{suffix}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            self._missing.append(f"{path.name} could not be written: {error.strerror}")
            return
        self._files.append(str(path.relative_to(self._run_dir)))


async def collect(
    workers: list[Worker],
    collection: int,
    run_dir: Path,
    seconds: float,
    on_taken: Callable[[EvidenceTaken], None],
) -> None:
    """Evidence of all `workers` side by side, each handed over as soon as it is complete."""
    deadline = time.monotonic() + seconds

    async def one(worker: Worker) -> None:
        on_taken(await Taker(worker, collection, run_dir, deadline).take())

    await asyncio.gather(*(one(worker) for worker in workers))


def process_facts(pid: int) -> ProcessFacts | None:
    """From /proc; None when the process is gone."""
    stat = processes.read_stat(pid)
    if stat is None:
        return None
    return ProcessFacts(
        state=stat.state,
        wchan=_read(Path(f"/proc/{pid}/wchan")).decode("ascii", "replace"),
        cpu_seconds=stat.cpu_seconds,
        rss_bytes=stat.rss_bytes,
        threads=stat.threads,
    )


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file; progress bars as they were shown last."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            start = file.seek(max(0, end - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if start > 0:
        del lines[0]
    if lines and not lines[-1]:
        del lines[-1]
    return [line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines[-count:]]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
