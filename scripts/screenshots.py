"""Pictures of the screens for docs/img, of a real run: `python scripts/screenshots.py [RUN]`.

Without RUN (the directory of one), a small training of 4 ranks is started, one of its ranks is
stopped with SIGSTOP and later another one killed, as somebody would with `harness inject`; that
takes a minute or two. The pictures are taken from its journal at the moments of the two incidents.
The mesh of 1,024 ranks is made of the records of bench/tui.py, one rank of which leaves.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from tui_world import world  # noqa: E402

from harness import runs  # noqa: E402
from harness.cli.tui import _kinds  # noqa: E402
from harness.events import IncidentOpened, Record, WorkerExited  # noqa: E402
from harness.incidents import Incident, Verdict, Where  # noqa: E402
from harness.tui.app import HarnessApp, Options  # noqa: E402
from harness.tui.feed import Feed  # noqa: E402
from harness.tui.replay import ReplayFeed  # noqa: E402

IMAGES = ROOT / "docs" / "img"
SIZE = (110, 30)
CONFIG = """\
[model]
d_model = 32
layers = 2
heads = 4
seq_len = 128
[data]
global_batch = 8
[parallel]
dp = 2
tp = 2
[optim]
steps = 150
lr = 2e-3
warmup = 10
[checkpoint]
every = 10
dir = "checkpoints"
"""
PICTURES = (
    # name, which incident (None: the end), seconds after it, keys
    ("mesh", 0, 0.0, ("1",)),
    ("collectives", 0, 0.0, ("2",)),
    ("stacks", 0, 0.0, ("3",)),
    ("metrics", None, 0.0, ("5",)),
    ("incidents", None, 0.0, ("6",)),
    ("chaos", None, 0.0, ("7",)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.run or train(Path(scratch))
        for name, incident, after, keys in PICTURES:
            app = app_at(folder, incident, after)
            save(app, SIZE, keys, options.out / f"tui-{name}.svg")
    save(large(), (150, 44), (), options.out / "tui-1024.svg")


def train(scratch: Path) -> Path:
    """A run with two incidents, made now."""
    (scratch / "small.toml").write_text(CONFIG, encoding="utf-8")
    harness = [sys.executable, "-m", "harness"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*harness, "run", "--chaos-allowed", "--nproc-per-node", "4"]
    script = [str(ROOT / "trainer" / "train.py"), "--config", "small.toml"]
    with subprocess.Popen([*command, *script], cwd=scratch, env=env) as training:
        for kind, rank, step in (("stop", "2", 40), ("kill", "1", 90)):
            while step_of(scratch) < step:
                if training.poll() is not None:
                    sys.exit("the training ended too early")
                time.sleep(0.5)
            asked = [*harness, "inject", kind, "--rank", rank]
            subprocess.run(asked, cwd=scratch, env=env, check=True)
    return (scratch / "runs" / "latest").resolve()


def step_of(scratch: Path) -> int:
    found = scratch / "runs" / "latest"
    if not (found / "journal.jsonl").exists():
        return 0
    attempt = runs.read(runs.RunFolder(path=found.resolve())).state.attempt
    return 0 if attempt is None else attempt.step


def app_at(folder: Path, incident: int | None, after: float) -> HarnessApp:
    """The app as it was that long after the incident of that number."""
    feed = ReplayFeed(folder / "journal.jsonl")
    feed.tape.read(feed.stop_asked, print)
    feed.loaded = True
    found = feed.tape.incidents
    feed.seek(feed.tape.last_ns if incident is None else found[incident] + int(after * 1e9))
    feed.label = "LIVE" if feed.model.state.ended is None else "ENDED"
    from harness.tui.logwatch import LogWatch

    logs = LogWatch(folder)
    for _ in range(3):
        logs.poll()
    options = Options(kinds=_kinds, flops_per_token=6 * 60_000, peak_tflops=0.05)
    app = HarnessApp(feed, options, logs=logs, do=lambda _: (False, ""))
    app.kinds = _kinds()
    return app


def large() -> HarnessApp:
    """1,024 ranks, of which one has left and all others wait."""
    feed = Feed(lambda _: None, source="made")
    run = world(1024)
    records = next(run)
    for _ in range(8):
        records = [*records, *run.send(1.0)]
    for record in records:
        feed.take(record)
    last = records[-1].stamp
    left = WorkerExited(
        rank=517, pid=2, exit_code=0, signal=None, exited_ns=last.wall_ns, ordered=False
    )
    verdict = Verdict(
        verdict="rank_exited_early",
        first_failing=(517,),
        victims=tuple(rank for rank in range(1024) if rank != 517),
        innocent=(),
        cause="it left with exit code 0 while all others go on",
        reason="all others wait for it",
        confidence="proven",
        onset_ns=last.wall_ns,
        attempt=0,
        step=9,
        signature="rank_exited_early:517",
        where=Where(file="train.py", line=212, function="next_batch"),
    )
    incident = Incident(
        id=1,
        verdict=verdict,
        action="restart",
        action_reason="from step 200",
        detected_ns=last.wall_ns,
    )
    feed.take(Record(stamp=last, event=left))
    feed.take(Record(stamp=last, event=IncidentOpened(incident=incident)))
    feed.say("LIVE")
    return HarnessApp(feed, clock=lambda: last.wall_ns)


def save(app: HarnessApp, size: tuple[int, int], keys: tuple[str, ...], path: Path) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await pilot.pause(0.2)
            path.write_text(app.export_screenshot(), encoding="utf-8")

    asyncio.run(run())
    if app.bug is not None:
        raise app.bug
    print(path)


if __name__ == "__main__":
    main()
