"""`harness run`, `inject` and `stop` as typed, in folders that are not kind to us."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HARNESS = [sys.executable, "-m", "harness"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def harness(here: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*HARNESS, *arguments],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_script_s_arguments_pass_untouched(here: Path) -> None:
    given = ["--nproc-per-node", "7", "-m", "--help", "--", "", "a b", "--lr=3"]
    done = harness(here, "run", "--dry-run", "--nproc_per_node=2", "train.py", *given)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job"]
    assert job["script_args"] == given
    assert job["nproc_per_node"] == 2
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ([], []),
        (["-r", "3"], [-1]),
        (["-r", "0:3,1:1"], [1, 2]),
        (["-r", "3", "-t", "2:3"], [2]),
        (["-r", "2:3", "--local-ranks-filter", "0,2"], [0]),
        (["--local-ranks-filter", "0-1"], [0, 1]),
    ],
)
def test_what_is_shown_on_the_console(here: Path, options: list[str], shown: list[int]) -> None:
    done = harness(here, "run", "--dry-run", "--nproc-per-node", "3", *options, "train.py")
    assert json.loads(done.stdout)["job"]["local_ranks_filter"] == shown


def test_an_existing_name_and_an_impossible_folder_are_refused(here: Path) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "file").write_text("")
    taken = harness(here, "run", "--run-name", "mine", "train.py")
    impossible = harness(here, "run", "--runs-dir", "file/runs", "train.py")
    assert (taken.returncode, impossible.returncode) == (2, 2)
    assert taken.stderr.startswith("error[H001]: run mine already exists in ")
    assert impossible.stderr.startswith("error[H303]: cannot make a run directory in ")
    assert not (here / "runs" / "latest").exists()


def test_a_run_beyond_loopback_needs_a_token(here: Path) -> None:
    meet = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "0.0.0.0"]
    bare = harness(here, "run", "--dry-run", *meet, "train.py")
    assert bare.returncode == 2
    assert "needs a token" in bare.stderr
    (here / "token").write_text("secret\n")
    done = harness(here, "run", "--dry-run", *meet, "--token-file", "token", "train.py")
    assert done.returncode == 0, done.stderr
    assert "secret" not in done.stdout


def test_a_user_s_own_modules_are_neither_shadowed_nor_shadow_ours(here: Path) -> None:
    for name in ("agent", "trainer", "tui"):
        (here / name).mkdir()
        (here / name / "__init__.py").write_text("mine = True\n")
    for name in ("chaos", "queue", "select", "grpc", "signal", "runs"):
        (here / f"{name}.py").write_text("raise RuntimeError('imported by Harness')\n")
    (here / "program.sh").write_text("#!/bin/sh\necho went well\n")
    (here / "program.sh").chmod(0o700)
    # The console script has no folder of the user's on its path, unlike `python -m`.
    code = "import sys; sys.path.remove(''); from harness.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--no-python", "./program.sh"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "went well\n"


@pytest.fixture
def running(here: Path, request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    """A run named `live` that works until it is stopped; `request.param` adds options."""
    (here / "work.sh").write_text("#!/bin/sh\ntouch working\nexec sleep 1000\n")
    (here / "work.sh").chmod(0o700)
    run = subprocess.Popen(
        [*HARNESS, "run", "--run-name", "live", *request.param, "--no-python", "./work.sh"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (here / "working").exists():
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.05)
    yield run
    run.terminate()
    run.communicate(timeout=240)


@pytest.mark.parametrize("running", [()], indirect=True)
def test_harm_is_refused_unless_allowed_and_stop_stops(
    here: Path, running: "subprocess.Popen[str]"
) -> None:
    refused = harness(here, "inject", "kill", "--rank", "0")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error[H103]: refused: ")
    assert "--chaos-allowed" in refused.stderr
    unknown = harness(here, "inject", "kill", "--rank", "0", "life")
    assert unknown.returncode == 2
    assert "did you mean live?" in unknown.stderr
    stopped = harness(here, "stop", "live")
    assert stopped.returncode == 0, stopped.stderr
    assert running.wait(240) != 0
    over = harness(here, "stop", "live")
    assert over.returncode == 2
    assert over.stderr.startswith("error[H102]: run live is over")


@pytest.mark.parametrize("running", [("--chaos-allowed",)], indirect=True)
def test_an_allowed_kill_kills_the_rank(here: Path, running: "subprocess.Popen[str]") -> None:
    wrong = harness(here, "inject", "kill", "--rank", "7")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error[H103]: refused: ")
    (here / "working").unlink()
    done = harness(here, "inject", "kill", "--rank", "0")
    assert done.returncode == 0, done.stderr
    while not (here / "working").exists():  # the next attempt works
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.05)
    events = (here / "runs" / "live" / "journal.jsonl").read_text()
    assert '"FaultInjected"' in events
    assert '"killed_by_signal"' in events


def test_folders_to_watch(here: Path) -> None:
    (here / "file").write_text("")
    (here / "harness.toml").write_text('watch_checkpoints = ["ck", "/data/more"]\n')
    told = harness(here, "run", "--dry-run", "train.py")
    assert json.loads(told.stdout)["job"]["watch_checkpoints"] == [str(here / "ck"), "/data/more"]
    twice = ["--watch-checkpoints", "a", "--watch-checkpoints", "b/c"]
    told = harness(here, "run", "--dry-run", *twice, "train.py")
    folders = [str(here / "a"), str(here / "b" / "c")]
    assert json.loads(told.stdout)["job"]["watch_checkpoints"] == folders
    refused = harness(here, "run", "--watch-checkpoints", "file", "train.py")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error[H002]: --watch-checkpoints: file is a file, not a directory\n"
        "help: give the directory that the checkpoint files are saved in\n"
    )


def test_names_that_digests_leave_alone(here: Path) -> None:
    twice = ["--digest-exclude", "ema.*", "--digest-exclude", "*.adapter"]
    told = harness(here, "run", "--dry-run", *twice, "train.py")
    assert json.loads(told.stdout)["job"]["digest_exclude"] == ["ema.*", "*.adapter"]
    refused = harness(here, "run", "--digest-exclude", "*", "train.py")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error[H002]: --digest-exclude: * excludes every tensor\n"
        "help: to take no digests at all give --digests 0\n"
    )


HALF = """\
import glob, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, first = dist.get_rank(), 0
os.makedirs("ck", exist_ok=True)
mine = glob.glob(f"ck/shard{rank}_step*.pt")
if mine:
    first = max(torch.load(name)["step"] for name in mine)
print(f"rank {rank} goes on from step {first}", flush=True)
for step in range(first + 1, 31):
    dist.all_reduce(torch.ones(8))
    if step == 20 and rank == 1 and first == 0:
        while not os.path.exists("saved0"):
            time.sleep(0.01)
        os.abort()  # between the saves of two ranks
    if step % 10 == 0:
        torch.save({"step": step}, f"ck/shard{rank}_step{step}.pt")
    if step == 20:
        open(f"saved{rank}", "w").close()
"""


@pytest.mark.slow
def test_nobody_goes_on_from_half_a_checkpoint(here: Path) -> None:
    (here / "train.py").write_text(HALF)
    watch = ["--watch-checkpoints", "ck", "--nproc-per-node", "2"]
    done = harness(here, "run", *watch, "train.py")
    assert done.returncode == 0, done.stderr
    assert "shard0_step20.pt is set aside as shard0_step20.pt.set-aside" in done.stderr
    for rank in (0, 1):
        assert f"rank {rank} goes on from step 10" in done.stdout
    assert len(list((here / "ck").glob("shard*_step30.pt"))) == 2
