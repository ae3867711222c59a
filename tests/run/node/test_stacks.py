"""Stacks of real processes that make it hard: stopped, holding the interpreter lock, gone, with
data loaders; and what is said when a tool may not look."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from harness import events, orders
from harness.agent import spyreport, stacks
from harness.processes import catches
from harness.worker import bootstrap
from harness.worker.assignment import STACK_SIGNAL, stack_file

HARD = """
    import ctypes, os, signal, sys, time, torch, torch.distributed as dist
    rank = int(os.environ["RANK"])
    def frozen():
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    def held():
        libc = ctypes.PyDLL(None)
        print("ready", flush=True)
        libc.sleep(1000)
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, at):
            print("ready", flush=True)
            time.sleep(1000)
    def loading():
        hidden = "in the parent"
        for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):
            pass
    (frozen, held, loading, sys.exit)[rank]()
"""


def test_stacks_of_ranks_that_make_it_hard(node: Any) -> None:
    started = node.launch(HARD, ranks=4)
    node.until(events.WorkerExited)
    node.wait_until(lambda: all("ready" in node.log(rank) for rank in range(3)))
    stat = Path(f"/proc/{started[0].pid}/stat")
    node.wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    for _ in range(20):  # a look may come between print and sleep
        node.order(orders.TakeStacks(request="a", with_locals=True))
        taken = node.until(events.StacksTaken)
        ranks = {stack.rank: stack for stack in taken.stacks}
        if (
            ranks[0].frames
            and ranks[1].frames
            and ranks[2].children
            and ranks[2].children[0].user_frame
        ):
            break
    assert (taken.request, taken.node_rank) == ("a", 0)
    frozen, held, loading, gone = (ranks[rank] for rank in range(4))
    assert frozen.user_frame, frozen
    assert (frozen.state, frozen.user_frame.function) == ("T", "frozen")
    assert held.user_frame.function == "held"
    assert loading.user_frame.function == "loading"
    at = [frame.function for frame in loading.frames].index("loading")
    assert 'hidden = "in the parent"' in loading.variables[at]
    (child,) = loading.children
    assert child.user_frame.function.endswith("__getitem__")
    assert (gone.frames, gone.missing) == ((), "the process is gone (exit code 0)")
    assert all(stack.frames_by == "py-spy" for stack in (frozen, held, loading))
    node.order(orders.TakeStacks(request="b", ranks=(1,)))
    taken = node.until(events.StacksTaken)
    assert [stack.rank for stack in taken.stacks] == [1]
    assert taken.stacks[0].variables == ()
    node.stop()
    assert node.of(events.EvidenceTaken) == []


def test_ways_to_a_stack_without_py_spy(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is the last resort, and only for who has a handler for it."""
    (started,) = node.launch(
        """
        import time
        def busy():
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
        busy()
        """,
        ranks=1,
    )
    node.wait_until(lambda: "ready" in node.log(0))
    monkeypatch.setattr(stacks, "_beside", lambda name: None)
    fatal = Path(stack_file(str(node.runtime_dir / "ranks" / f"a{node.attempt}r0.fatal")))
    assert catches(started.pid, STACK_SIGNAL)

    def take(**how: Any) -> stacks.Stack:
        taker = stacks.Taker(time.monotonic() + 100)
        return asyncio.run(taker.take(stacks.Subject(pid=started.pid, **how)))

    asked = take(fatal=fatal)
    assert asked.by == "faulthandler"
    assert spyreport.user_frame(asked.frames).function == "busy"  # type: ignore[union-attr]
    unseen = take()
    assert (unseen.frames, unseen.missing) == ((), "py-spy is not installed (pip install py-spy)")
    sleeper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    try:
        taker = stacks.Taker(time.monotonic() + 100)
        left_alone = asyncio.run(taker.take(stacks.Subject(pid=sleeper.pid, fatal=fatal)))
        assert left_alone.frames == ()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
    node.stop()


@pytest.mark.parametrize(
    ("scope", "advice"),
    [
        ("1\n", "ptrace_scope is 1; set it to 0 (sysctl kernel.yama.ptrace_scope=0), or give"),
        ("3\n", "ptrace_scope is 3, which forbids it until the machine is started again"),
        (None, "run as the same user as the process, or give CAP_SYS_PTRACE"),
    ],
)
def test_a_refusal_says_what_to_set(
    scope: str | None, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho 'Error: Permission Denied (os error 13)' >&2; exit 1\n")
    tool.chmod(0o700)
    yama = tmp_path / "ptrace_scope"
    if scope is not None:
        yama.write_text(scope)
    monkeypatch.setattr(stacks, "_beside", lambda name: str(tool))
    monkeypatch.setattr(stacks, "_YAMA", yama)
    with pytest.raises(spyreport.NoStack) as refused:
        stacks.spy(os.getpid(), 5.0)
    assert "py-spy was refused" in str(refused.value)
    assert advice in str(refused.value)


def test_pystack_reports_are_read() -> None:
    text = (
        "Traceback for thread 41 (python) [] (most recent call last):\n"
        '    (Python) File "/home/me/train.py", line 9, in <module>\n'
        "        main()\n"
        '    (Python) File "/home/me/train.py", line 4, in main\n'
        "Traceback for thread 42 (python) [] (most recent call last):\n"
        '    (Python) File "/other.py", line 1, in f\n'
    )
    found = spyreport.from_pystack(text)
    assert [(frame.line, frame.function) for frame in found] == [(4, "main"), (9, "<module>")]


def test_a_process_that_is_none_has_no_stack() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    child.send_signal(signal.SIGKILL)
    child.wait()
    taker = stacks.Taker(time.monotonic() + 100)
    stack = asyncio.run(taker.take(stacks.Subject(pid=child.pid)))
    assert stack.frames == ()
    assert stack.missing


def test_other_threads_of_a_report_with_those_in_the_users_code_first() -> None:
    def thread(name: str, at: int, *places: tuple[str, str]) -> dict[str, Any]:
        frames = [{"filename": file, "line": 7, "name": function} for file, function in places]
        return {"thread_name": name, "os_thread_id": at, "frames": frames}

    waits = (threading.__file__, "wait")
    report = [
        thread("MainThread", 41, ("/home/me/train.py", "main")),
        thread("logger", 42, waits),
        thread("heartbeat", 43, waits, (bootstrap.__file__, "beat")),
        thread("uploader", 44, waits, ("/home/me/train.py", "upload")),
        thread("pool", 45),
    ]
    found = spyreport.other_threads(json.dumps(report).encode(), 41)
    told = [(thread.name, thread.where.function) for thread in found]
    assert told == [("uploader", "upload"), ("logger", "wait")]


def test_the_main_thread_is_found_beside_a_state_that_is_just_being_made() -> None:
    """As py-spy tells of a process that was stopped while another of its threads took the lock."""
    main = {"pid": 41, "thread_name": "MainThread", "os_thread_id": 41}
    frame = {"filename": "/u/train.py", "line": 6, "name": "frozen", "locals": None}
    report = [{**main, "frames": []}, {**main, "frames": [frame]}]
    frames, _ = spyreport.main_thread(json.dumps(report).encode(), 41)
    assert [each.function for each in frames] == ["frozen"]
    with pytest.raises(spyreport.NoStack, match="no Python frame"):
        spyreport.main_thread(json.dumps(report[:1]).encode(), 41)
