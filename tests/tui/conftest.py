"""Scenes as a fixture (tests are not a package to import from), and a way to drive the app."""

import asyncio
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.config import Job
from harness.tui.app import HarnessApp, Options
from harness.tui.feed import Feed
from harness.tui.logwatch import LogWatch

GOLDEN = Path(__file__).with_name("golden")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "harness_view_scenes", Path(__file__).with_name("scenes.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCENES = _load()


@pytest.fixture(scope="session")
def scenes() -> ModuleType:
    return SCENES


def feed_of(scene: Any) -> Feed:
    """A feed that holds the scene's records and has no source."""
    feed = Feed(lambda _: None, source="scene")
    for record in scene.records:
        feed.take(record)
    feed.say("LIVE")
    return feed


def app_of(scene: Any, *, run_dir: Path | None = None, **options: Any) -> HarnessApp:
    logs = None
    if run_dir is not None:
        logs = LogWatch(run_dir)
        for _ in range(3):  # a line waits at most one round for the other ranks
            logs.poll()
    do = options.pop("do", None)
    return HarnessApp(
        feed_of(scene),
        Options(zone=timezone.utc, **options),
        logs=logs,
        do=do,
        clock=lambda: scene.now_ns,
    )


def drive(
    app: HarnessApp,
    size: tuple[int, int],
    *keys: str,
    then: Callable[[], None] | None = None,
    broken: bool = False,
) -> list[str]:
    """The screen of `app` as text after `keys` were pressed; `then` looks at the living app.

    What breaks the app is raised, unless it should be `broken`.
    """

    async def run() -> list[str]:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await pilot.pause()
            if then is not None:
                then()
            return screen_text(app)

    lines: list[str] = []
    try:
        lines = asyncio.run(run())
    finally:
        if app.bug is not None and not broken:
            raise app.bug
    return lines


def screen_text(app: HarnessApp) -> list[str]:
    """What stands on the screen, line by line, read from the exported picture."""
    lines: dict[int, dict[float, str]] = {}
    place = r'x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" clip-path="[^"]*-line-(\d+)\)"'
    found = re.findall(rf"<text[^>]*? {place}>([^<]*)</text>", app.export_screenshot())
    for x, line, text in found:
        plain = html.unescape(text).replace("\u00a0", " ")
        lines.setdefault(int(line), {})[float(x)] = plain
    width = 12.2  # of a character in the picture
    shown = []
    for at in range(app.size.height):
        row = ""
        for x, text in sorted(lines.get(at, {}).items()):
            row = row.ljust(round(x / width)) + text
        shown.append(row.rstrip())
    return shown


async def screens(app: HarnessApp) -> list[str]:
    """What each of the seven screens shows."""
    shown = []
    async with app.run_test(size=(80, 24)) as pilot:
        for key in "1234567":
            await pilot.press(key)
            await pilot.pause()
            await pilot.pause()
            shown.append("\n".join(screen_text(app)))
    assert app.bug is None
    return shown


def check_golden(name: str, lines: Sequence[str]) -> None:
    """Compare with the committed picture; HARNESS_GOLDEN=write takes the new one."""
    path = GOLDEN / f"{name}.txt"
    text = "\n".join(lines) + "\n"
    if os.environ.get("HARNESS_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def tui() -> ModuleType:
    """The functions above, for tests to call."""
    module = ModuleType("tui_driving")
    vars(module).update(
        feed_of=feed_of,
        app_of=app_of,
        drive=drive,
        screen_text=screen_text,
        screens=screens,
        golden=check_golden,
    )
    return module


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
