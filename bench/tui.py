"""What the screens cost: CPU per tick and bytes per frame at 64, 1,024 and 16,384 ranks.

`python bench/tui.py [--ranks 64,1024] [--seconds N] [--replayed SECONDS] [--write]`

The app runs as it does for a user, in a terminal of its own (a pty, 150x44), and looks for news
four times a second. A run is made of records as agents write them, 8 ranks a node: nodes report as
often as agents do, four times a second up to 500 of them, thousands less often; at each report a
share of its ranks has made a step (`changed`). The records lie ready as lines of a journal. CPU is
that of the whole process (getrusage); `read` is that of the thread that decodes the lines and folds
them into the model, which any reader of a run pays, and the screen is the rest. Bytes are counted
where the app writes them. Then keys while nothing changes, from the key to what it paints; a
replay: an hour of 1,024 ranks as a journal; and the logs of as many.
`--write` puts the table into bench/results/tui.md.
"""

import argparse
import contextlib
import fcntl
import json
import os
import platform
import pty
import random
import resource
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tui_world import HZ, long_run, world  # noqa: E402

if TYPE_CHECKING:
    from harness.tui.feed import Feed

RESULTS = Path(__file__).with_name("results")
WIDTH, HEIGHT = 150, 44
WARM_TICKS = 2 * HZ
REPLAYED_SECONDS = 3600
SEEKS = 100
LOGGED_SECONDS = 12
KEYS = 60
QUIET_SECONDS = 2.0
"""Nothing is drawn for so long: the app has come up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="64,1024,16384")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--replayed", type=int, default=REPLAYED_SECONDS, help="seconds")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        job = json.loads(options.child)
        if "replay" in job:
            print(json.dumps(replayed(Path(job["replay"]))))
        else:
            child(job)
        return
    lines = table([int(text) for text in options.ranks.split(",")], options.seconds)
    lines += ["", *keys(), *replay(options.replayed), *logs()]
    print("\n".join(lines))
    if options.write:
        (RESULTS / "tui.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(worlds: list[int], seconds: float) -> list[str]:
    from importlib.metadata import version

    lines = [
        "# The screens",
        "",
        f"`python bench/tui.py`: Python {platform.python_version()}, textual {version('textual')}, "
        f"{WIDTH}x{HEIGHT}, {HZ} looks a second, {seconds:g} s each; {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.0f} when it began.",
        "CPU a tick; `of a core` is all of it, the last column what drawing costs beside reading "
        "the records.",
        "",
        "| ranks | screen | changed | all, ms | read, ms | of a core | bytes a frame | KB/s | MB "
        "| drawing |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ticks = int(seconds * HZ)
    for size in worlds:
        for changed, pages in (
            (0.0, ("mesh",)), (0.05, ("mesh",)), (1.0, ("mesh", "collectives", "metrics")),
        ):  # fmt: skip
            with tempfile.NamedTemporaryFile() as journal:
                record(journal, size, changed, WARM_TICKS + ticks)
                for page in pages:
                    drawn = measure({"journal": journal.name, "page": page, "ticks": ticks})
                    lines.append(row(size, page, changed, drawn))
                    print(lines[-1], file=sys.stderr)
    return lines


def row(size: int, page: str, changed: float, drawn: dict[str, float]) -> str:
    share = (drawn["ms"] - drawn["read"]) * HZ / 1000
    frame = drawn["bytes"] / drawn["ticks"]
    return (
        f"| {size:,} | {page} | {changed:.0%} | {drawn['ms']:.1f} | {drawn['read']:.1f} "
        f"| {drawn['ms'] * HZ / 1000:.1%} | {frame:,.0f} | {frame * HZ / 1000:.1f} "
        f"| {drawn['rss'] / 1024:.0f} | {share:.1%} |"
    )


def record(journal: IO[bytes], size: int, changed: float, ticks: int) -> None:
    """A start and so many ticks as lines of a journal, an empty one after each."""
    from harness import codec

    run = world(size)
    for batch in [next(run), *(run.send(changed) for _ in range(ticks))]:
        journal.writelines(codec.encode(record) + b"\n" for record in batch)
        journal.write(b"\n")
    journal.flush()


def replay(seconds: int, ranks: int = 1024) -> list[str]:
    """How soon the journal of a long run is there, and how long the way to a moment takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with path.open("wb") as file:
            header = {"schema": 1, "harness": "0", "run": "bench"}
            file.write(json.dumps(header).encode() + b"\n")
            file.writelines(long_run(ranks, seconds))
        size = path.stat().st_size / 1e9
        child = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps({"replay": str(path)})],
            stdout=subprocess.PIPE,
            check=True,
        )
    told = json.loads(child.stdout)
    return [
        f"Replay of {seconds / 60:.0f} minutes of {ranks:,} ranks ({size:.1f} GB): the first "
        f"picture after {told['first']:.2f} s and {told['first_cpu']:.2f} s of",
        f"CPU; incidents are known after {told['search']:.1f} s of CPU, all of it is read after "
        f"{told['read']:.0f}. The way to a moment then takes",
        f"{told['seek']:.0f} ms of CPU, {told['seek_95']:.0f} at the 95th percentile, "
        f"{told['seek_most']:.0f} at most of {told['seeks']}; {told['rss'] / 1024:.0f} MB, "
        f"{told['kept']:.0f} of them models that are kept.",
    ]


def replayed(path: Path) -> dict[str, float]:
    from harness.garbage import collect_seldom
    from harness.tui.replay import ReplayFeed

    collect_seldom()
    begun = time.monotonic()
    feed = ReplayFeed(path)
    feed.start()
    while not feed.shown:
        time.sleep(0.005)
    figures = {"first": time.monotonic() - begun, "first_cpu": cpu()}
    while not feed.loaded:
        time.sleep(0.02)
    figures["read"] = cpu()
    feed.playing = False
    chosen = random.Random(0)
    took = []
    for _ in range(SEEKS):
        at_ns = chosen.randrange(feed.tape.first_ns, feed.tape.last_ns)
        used = time.thread_time()
        feed.seek(at_ns)
        took.append((time.thread_time() - used) * 1000)
    feed.stop()
    used = time.thread_time()
    feed.tape.search(threading.Event())
    return figures | {
        "search": time.thread_time() - used,
        "seek": statistics.median(took),
        "seek_95": statistics.quantiles(took, n=20)[-1],
        "seek_most": max(took),
        "seeks": SEEKS,
        "rss": most_memory(),
        "kept": feed.tape.kept_bytes / 1e6,
    }


def logs(ranks: int = 1024) -> list[str]:
    """What it costs to read and fold a line a second of each rank, twice a second."""
    from harness.tui.logwatch import LogWatch

    polls, used = 0, 0.0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        of_attempt = Path(folder) / "logs" / "attempt0"
        of_attempt.mkdir(parents=True)
        files = [
            opened.enter_context((of_attempt / f"rank{rank:05d}.log").open("w"))
            for rank in range(ranks)
        ]
        watch = LogWatch(Path(folder))
        for step in range(LOGGED_SECONDS):
            for half in (files[: ranks // 2], files[ranks // 2 :]):
                for file in half:
                    file.write(f"step={step} loss=2.5\n")
                    file.flush()
                before = time.thread_time()
                watch.poll()
                used += time.thread_time() - before
                polls += 1
    return [
        f"Logs: a line a second of each of {ranks:,} ranks, read and folded twice a second, takes "
        f"{used / polls * 2:.1%} of a core.",
    ]


def measure(job: dict[str, object]) -> dict[str, float]:
    """One run in a child with a terminal of its own; what it says, and the bytes it drew."""
    with watched(job) as (master, told):
        answer = b""
        while chunk := _read(master, told):
            answer += chunk
    result: dict[str, float] = json.loads(answer)
    return result


def keys(ranks: int = 1024) -> list[str]:
    """From a key, the cell to the right and back, to the first bytes that it paints."""
    took: list[float] = []
    with tempfile.NamedTemporaryFile() as journal:
        record(journal, ranks, 0.0, WARM_TICKS)
        ticks = WARM_TICKS + KEYS * HZ
        with watched({"journal": journal.name, "page": "mesh", "ticks": ticks}) as (master, _):
            select.select([master], [], [])  # it has begun to draw
            _quiet(master, QUIET_SECONDS)
            for key in (b"l", b"h") * (KEYS // 2):
                began = time.monotonic()
                os.write(master, key)
                select.select([master], [], [])
                took.append((time.monotonic() - began) * 1000)
                _quiet(master, 0.15)
    worst = statistics.quantiles(took, n=20)[-1]
    return [
        f"Keys: {statistics.median(took):.0f} ms from a key to what it paints at {ranks:,} ranks, "
        f"{worst:.0f} ms at the 95th",
        f"percentile of {len(took)}.",
    ]


def _quiet(master: int, seconds: float) -> None:
    """Read what is drawn until nothing was for so long."""
    while select.select([master], [], [], seconds)[0]:
        os.read(master, 1 << 16)


@contextlib.contextmanager
def watched(job: dict[str, object]) -> Iterator[tuple[int, int]]:
    """The app in a child: the terminal's other end, and where it says its figures. It ends with
    the context."""
    from harness.processes import before_exec

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    told, tell = os.pipe()
    command = [sys.executable, __file__, "--child", json.dumps({**job, "tell": tell})]
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        pass_fds=(tell,),
        start_new_session=True,
        preexec_fn=before_exec(signal.SIGKILL),  # noqa: PLW1509
    ) as process:
        os.close(slave)
        os.close(tell)
        try:
            yield master, told
        finally:
            process.terminate()
            os.close(master)
            os.close(told)


def _read(master: int, told: int) -> bytes:
    """What the child says; what it draws is read too, or it would stand still."""
    while True:
        ready, _, _ = select.select([master, told], [], [])
        if master in ready:
            try:
                os.read(master, 1 << 16)
            except OSError:
                return os.read(told, 1 << 16)
        if told in ready:
            return os.read(told, 1 << 16)


# --- the child ---------------------------------------------------------------------------------


def child(job: dict) -> None:
    """Feed and draw for so long, then tell the figures."""
    from harness.garbage import collect_seldom
    from harness.tui.app import HarnessApp
    from harness.tui.feed import Feed

    collect_seldom()  # as the command does
    feed = Feed(lambda _: None, source="bench")
    journal = Path(job["journal"]).open("rb")  # noqa: SIM115 (read to the end of the process)
    take_tick(feed, journal)
    feed.say("LIVE")
    ticks = job["ticks"]
    figures: dict[str, float] = {}
    ready = threading.Event()
    written = Counted()

    def go_on() -> None:
        ready.wait()
        feed_for(feed, journal, WARM_TICKS)
        before, reading, drawn = cpu(), time.thread_time(), written.count
        feed_for(feed, journal, ticks)
        figures.update(
            ms=(cpu() - before) / ticks * 1000,
            read=(time.thread_time() - reading) / ticks * 1000,
            bytes=written.count - drawn,
            ticks=ticks,
            rss=most_memory(),
        )

    feeding = threading.Thread(target=go_on, daemon=True)
    feeding.start()
    # The run's own time: by the machine's clock all of its nodes would be silent since long ago.
    app = HarnessApp(feed, clock=lambda: feed.model.state.last_ns)

    def watch() -> None:
        while not app.is_running:
            time.sleep(0.05)
        app.call_from_thread(lambda: (written.wrap(app), app.action_page(job["page"])))
        ready.set()
        feeding.join()
        app.call_from_thread(app.exit)

    threading.Thread(target=watch, daemon=True).start()
    app.run()
    if app.bug is not None:
        raise app.bug
    os.write(job["tell"], json.dumps(figures).encode())


class Counted:
    """Counts what a driver writes."""

    def __init__(self) -> None:
        self.count = 0

    def wrap(self, app: object) -> None:
        driver = app._driver  # type: ignore[attr-defined]
        write = driver.write

        def counted(data: str) -> None:
            self.count += len(data.encode())
            write(data)

        driver.write = counted


def most_memory() -> int:
    """KB that were resident at most since the program began; getrusage counts in what its parent
    had when it was forked."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.split("VmHWM:")[1].split()[0])


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def feed_for(feed: "Feed", journal: IO[bytes], ticks: int) -> None:
    due = time.monotonic()
    for _ in range(ticks):
        take_tick(feed, journal)
        due += 1 / HZ
        time.sleep(max(0.0, due - time.monotonic()))


def take_tick(feed: "Feed", journal: IO[bytes]) -> None:
    from harness import codec

    while line := journal.readline().rstrip():
        feed.take(codec.decode(line))


if __name__ == "__main__":
    main()
