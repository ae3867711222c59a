"""The guest's small parts, and what the agent makes of files and bytes, without an agent."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.agent import evidence, flight, spyreport
from harness.agent.console import Console
from harness.agent.environment import node_environ
from harness.agent.lines import PARTIAL_LIMIT, Folder, LineCutter
from harness.agent.script_scan import sets_environment_early, why_not_zygote
from harness.config import Job
from harness.worker import frames, link, pulse
from harness.worker.assignment import start_code


def test_pulse_page_survives_its_writer_and_is_never_half_written() -> None:
    page = pulse.make_page("0")
    reader = pulse.PulseReader(page)
    empty = reader.read()
    assert (empty.step, empty.phase, empty.loss, empty.loss_finite) == (0, "init", None, True)
    child = os.fork()
    if child == 0:
        writer = pulse.PulseWriter(page)
        step = 0
        while True:  # every field of one state follows from the step
            step += 1
            writer.beat()
            writer.put(
                step=step,
                phase="step",
                step_ns=2 * step,
                loss=float(step),
                loss_finite=True,
                tokens=3 * step,
                total_steps=4 * step,
            )
    for _ in range(5000):
        seen = reader.read()
        assert (seen.step_ns, seen.tokens, seen.total_steps) == (
            2 * seen.step,
            3 * seen.step,
            4 * seen.step,
        )
        assert seen.loss == (float(seen.step) if seen.step else None)
    while reader.step() == 0:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    last = reader.read()
    assert last.step == reader.step() > 0
    assert last.step_ns == 2 * last.step
    assert last.heartbeat_ns > 0
    reader.close()
    os.close(page)


def test_link_drops_and_counts_instead_of_waiting() -> None:
    ours, theirs = link.socket_pair()
    speaker = link.Link(theirs.fileno())
    sent = 0
    while speaker.say("PhaseChanged", phase="x" * 1000):
        sent += 1
    assert not speaker.say("PhaseChanged", phase="late")
    facts = link.receive(ours)
    assert facts is not None
    assert len(facts) == sent
    assert speaker.say("PhaseChanged", phase="again")
    assert link.receive(ours) == [
        {"type": "FactsLost", "count": 2},
        {"type": "PhaseChanged", "phase": "again"},
    ]
    assert not speaker.say("PhaseChanged", phase="y" * link.MESSAGE_LIMIT)
    ours.close()
    assert not speaker.say("PhaseChanged", phase="nobody listens")
    theirs.close()


def test_user_frames_are_found_behind_the_framework() -> None:
    torch_file = "/usr/lib/python3/site-packages/torch/nn/modules/module.py"
    package = "/usr/lib/python3/site-packages/recipes/train.py"
    stack = [(torch_file, 1), ("<frozen runpy>", 2), ("/home/me/train.py", 3), (package, 4)]
    assert frames.innermost_user(stack) == 3
    assert frames.innermost_user([(torch_file, 1), (package, 2), (os.__file__, 3)]) == 2
    assert frames.innermost_user([(torch_file, 1), (os.__file__, 2), (frames.__file__, 3)]) is None


def test_lines_are_whole_and_progress_bars_keep_their_last_state() -> None:
    cutter = LineCutter()
    assert cutter.feed("grün".encode()[:3]) == []
    assert cutter.feed("grün".encode()[3:] + b"\nnext\r\n") == ["grün", "next"]
    for percent in range(100):
        assert cutter.feed(f"\r{percent}%".encode()) == []
    assert len(cutter._rest) < 10
    assert cutter.feed(b"\rdone\n") == ["done"]
    long = "é" * PARTIAL_LIMIT
    pieces = cutter.feed(long.encode())
    assert "".join([*pieces, *cutter.take_rest()]) == long
    assert not cutter.has_rest


def test_equal_lines_fold_and_every_rank_keeps_its_order() -> None:
    folder = Folder(3, prefixed=True, hold=0.1)
    for rank in range(3):
        folder.add(rank, "start", 0.0)
    folder.add(2, "own", 0.0)
    folder.add(0, "step", 0.0)
    folder.add(2, "step", 0.05)
    folder.add(0, "step", 0.05)
    assert folder.due(0.06) == ["[r0-2] start"]
    assert folder.due(0.11) == ["[r2] own", "[r0,2] step"]
    folder.add(1, "step", 0.12)
    assert folder.due(0.13, everything=True) == ["[r0-1] step"]
    alone = Folder(1, prefixed=False)
    alone.add(0, "x", 0.0)
    assert alone.due(0.0) == ["x"]


def test_equal_tracebacks_fold_though_pytorch_says_whose_they_are() -> None:
    folder = Folder(2, prefixed=True)
    for rank in range(2):
        folder.add(rank, f"[rank{rank}]: Traceback (most recent call last):", 0.0)
    folder.add(1, "[rank7]: is somebody else", 0.0)
    shown = folder.due(1.0)
    assert shown == ["[r0-1] Traceback (most recent call last):", "[r1] [rank7]: is somebody else"]


def test_console_shows_every_line_and_notices_after_them(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    with shown.open("wb") as out:
        console = Console(2, prefixed=True, out=out.fileno(), err=out.fileno())
        for rank in range(2):
            log = tmp_path / f"rank{rank}.log"
            log.write_text("".join(f"{n} of {rank}\n" for n in range(20_000)) + "no end")
            console.follow(rank, log)
            console.finish(rank, log)
        console.notice("a card")
        console.close()
    lines = shown.read_text().splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[r{rank}]") and "of" in line]
        assert own == [f"[r{rank}] {n} of {rank}" for n in range(20_000)]
    assert {line for line in lines if " of " not in line} in (
        {"a card", "[r0-1] no end"},
        {"a card", "[r0] no end", "[r1] no end"},  # one was shown before the other was read
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import torch\nimport os\nos.environ['A'] = '1'\n", ""),
        ("import os\nprint(os.environ['A'])\nimport torch\n", ""),
        ("import os\nos.environ['MASTER_PORT'] = '1'\nimport torch\n", ""),
        ("import os\nos.environ['A'] = '1'\nimport torch\n", "train.py:2"),
        ("import os\nos.environ.setdefault('A', '1')\nfrom torch import nn\n", "train.py:2"),
        ("from os import environ\nenviron.update(A='1')\n", "train.py:2"),
        ("import os\ndef f():\n    os.putenv('A', '1')\nf()\nimport torch\n", "train.py:3"),
        ("import os\ndel os.environ['A']\nimport torch\n", "train.py:2"),
        ("import beside\nimport torch\n", "beside.py:2"),
        ("import torch\nimport beside\n", ""),
        ("not python at all", ""),
    ],
)
def test_variables_set_before_torch(tmp_path: Path, source: str, problem: str) -> None:
    (tmp_path / "beside.py").write_text("import os\nos.environ['A'] = '1'\n")
    script = tmp_path / "train.py"
    script.write_text(source)
    found = sets_environment_early(script, tmp_path)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_reasons_not_to_fork(tmp_path: Path) -> None:
    package = tmp_path / "recipes"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "__main__.py").write_text("import os\nos.environ['A'] = '1'\nimport torch\n")
    base: dict[str, Any] = {
        "run": "r",
        "runs_dir": str(tmp_path),
        "python": sys.executable,
        "cwd": str(tmp_path),
        "script": "recipes",
        "mode": "module",
    }
    assert why_not_zygote(Job(**base)).startswith("__main__.py:2 sets")
    assert why_not_zygote(Job(**{**base, "zygote": False})) == "--no-zygote"
    assert "interpreter" in why_not_zygote(Job(**{**base, "python": "/usr/bin/other"}))
    assert "-X dev" in why_not_zygote(Job(**{**base, "python_flags": ("-X", "dev")}))
    job = Job(**{**base, "nproc_per_node": 2})
    assert node_environ(job, {"HARNESS_TOKEN": "secret"}) == {"OMP_NUM_THREADS": "1"}
    assert node_environ(job, {"OMP_NUM_THREADS": "7"}) == {"OMP_NUM_THREADS": "7"}
    assert node_environ(Job(**base), {}) == {}


def test_flight_record_and_faulthandler_text() -> None:
    assert flight.parse(b'{"version": "2.10"}') == ()
    with pytest.raises(ValueError, match="not a flight record"):
        flight.parse(b"[]")
    text = (
        'Thread 0x01 (most recent call first):\n  File "/a/b.py", line 5 in other\n\n'
        'Current thread 0x02 (most recent call first):\n  File "/home/me/t.py", line 7 in inner\n'
        '  File "/home/me/t.py", line 9 in <module>\n'
    )
    found = spyreport.from_faulthandler(text)
    assert [(f.file, f.line, f.function) for f in found] == [
        ("/home/me/t.py", 7, "inner"),
        ("/home/me/t.py", 9, "<module>"),
    ]
    assert spyreport.user_frame(found) is not None


def test_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(100_000)) + b"1%\r2%\r")
    assert evidence.tail(log, 3) == ["line 99998", "line 99999", "2%"]
    assert evidence.tail(tmp_path / "none", 3) == []


def test_bootstrap_runs_a_program_as_python_does(tmp_path: Path) -> None:
    """Same output and exit code as plain Python, script and module, good and bad."""
    (tmp_path / "helper.py").write_text("name = 'mine'\n")
    (tmp_path / "harness.py").write_text("name = 'the user has one too'\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "__main__.py").write_text(
        "import sys, pack\nprint(__name__, __package__, __spec__.name, sys.argv[1:])\n"
    )
    (tmp_path / "train.py").write_text(
        "import sys, helper, harness, pickle\n"
        "class C: pass\n"
        "print(__name__, __file__, __spec__, sys.argv, sys.path[0], helper.name, harness.name)\n"
        "print(type(pickle.loads(pickle.dumps(C()))), sorted(k for k in globals()))\n"
        "if sys.argv[1:] == ['interrupt']: raise KeyboardInterrupt\n"
        "if sys.argv[1:] == ['text']: sys.exit('a last word')\n"
        "def deeper():\n"
        "    raise ValueError('bad') from KeyError('why')\n"
        "if sys.argv[1:] == ['hook']: sys.excepthook = lambda *args: print('hooked', args[0])\n"
        "deeper()\n"
    )
    (tmp_path / "wrong.py").write_text("def f(:\n")
    environ = {**os.environ, "PYTHONPATH": str(Path(frames.__file__).parents[2])}
    for words in (
        ["train.py", "--flag", "-m"],
        ["train.py", "hook"],
        ["train.py", "text"],
        ["train.py", "interrupt"],
        ["wrong.py"],
        ["missing.py"],
        ["-m", "pack", "x"],
        ["-m", "missing"],
    ):
        plain, ours = (
            subprocess.run(
                [sys.executable, *way, *words],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            for way in ([], ["-c", start_code("bootstrap")])
        )
        assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr), words
        assert ours.returncode == plain.returncode, words
