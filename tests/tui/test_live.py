"""Against a real controller on loopback that has taken up a run from its journal."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli.group import call
from harness.config import Job
from harness.tui.feed import controller_feed


@dataclass
class Controller:
    folder: Path
    process: subprocess.Popen
    address: str


@pytest.fixture
def controller(tmp_path, scenes):
    # It waits for its second node.
    scene = scenes.gathering(start_ns=time.time_ns(), mono_ns=time.monotonic_ns())
    folder = scene.write(tmp_path)
    job = Job(
        run=scene.run,
        runs_dir=str(tmp_path),
        script="train.py",
        python=sys.executable,
        nnodes=2,
        nproc_per_node=8,
        cwd=str(tmp_path),
    )
    job.write(folder / "job.json")
    ready, tell = os.pipe()
    words = ["--run-dir", str(folder), "--bind", "127.0.0.1:0", "--ready-fd", str(tell)]
    with subprocess.Popen(
        [sys.executable, "-m", "harness.controller", *words],
        stdin=subprocess.PIPE,
        pass_fds=(tell,),
    ) as process:
        os.close(tell)
        with open(ready) as file:
            address = json.loads(file.readline())["address"]
        yield Controller(folder=folder, process=process, address=address)
        process.kill()


def test_status_by_address_and_by_name_agree(controller, capsys):
    shown = []
    for run in (controller.address, str(controller.folder)):
        code = call(["status", run, "--json"])
        shown.append((code, json.loads(capsys.readouterr().out)))
    (code, live), (_, read) = shown
    assert code in (0, 4)
    assert live["run"] == read["run"] == "swift-otter-12"
    assert live["stage"] == read["stage"] == "gathering"
    assert live["controller"] is None
    assert read["controller"]["address"] == controller.address


def test_app_watches_a_controller(controller, scenes, tui):
    feed = controller_feed(controller.address, "")
    app = tui.app_of(scenes.gathering())
    app.feed = feed
    feed.start()
    try:
        while feed.received < 4:
            assert not feed.stop_asked.wait(0.01)
        lines = tui.drive(app, (80, 24))
        assert "LIVE" in lines[0]
        assert "waiting for nodes" in lines[1]
    finally:
        feed.stop()
    assert not feed._thread.is_alive()


def test_deed_reaches_the_controller(controller, scenes):
    from harness import runs
    from harness.cli.tui import _doer
    from harness.faults import Fault
    from harness.orders import Inject

    do = _doer(runs.find(str(controller.folder), Path()))
    accepted, why = do(Inject(fault=Fault(kind="kill", rank=0)))
    assert not accepted
    assert why
