"""The screens in a browser: what the server hands out, to whom, and what Chromium shows of it."""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")
pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 200
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


@pytest.fixture
def run_dir(tmp_path, scenes):
    return scenes.crashed().write(tmp_path / "runs")


@pytest.fixture
def served(run_dir):
    command = [sys.executable, "-m", "harness", "tui", str(run_dir), "--serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+", line)[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert process.stderr.read() == ""


async def read_until(socket, words, *, seen=b""):
    """All that the app has drawn, once `words` stand in it."""
    while words.encode() not in seen:
        message = await socket.receive(timeout=PATIENCE_SECONDS)
        assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), seen[-2000:]
        if message.type is aiohttp.WSMsgType.BINARY:
            seen += message.data
    return seen


def test_it_is_read_only_and_for_this_machine(served):
    async def visit():
        async with aiohttp.ClientSession() as session:
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                async with session.get(f"{served}/ws", headers=headers) as answer:
                    assert answer.status == 403
            async with session.get(served) as answer:
                page = await answer.text()
            assert answer.status == 200
            assert set(re.findall(r"//([a-z0-9.:]+)", page)) == {served.removeprefix("http://")}
            async with session.ws_connect(f"{served}/ws?width=80&height=24") as socket:
                seen = await read_until(socket, "EXCEPTION")
                await socket.send_json(["stdin", "S"])
                seen = await read_until(socket, "this view is read-only", seen=seen)
                await socket.send_json(["stdin", "w"])
                await read_until(socket, "no files are written from a browser", seen=seen)

    asyncio.run(visit())


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_chromium_shows_the_mesh_and_takes_keys(served, tmp_path):
    """Drives a headless browser over its debugging protocol."""
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,600", "about:blank"),
    ]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as browser:
        try:
            line = next(line for line in browser.stderr if "DevTools listening" in line)
            port = re.search(r"127\.0\.0\.1:(\d+)", line)[1]
            picture = asyncio.run(look(port, served))
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
    if "HARNESS_PICTURES" in os.environ:
        Path(os.environ["HARNESS_PICTURES"], "browser.png").write_bytes(picture)
    assert len(picture) > 10_000


async def look(port, url):
    """A picture of the page with the help on it. Text is drawn on a canvas, so what the app sends
    is listened to, and what is drawn is judged by its size."""
    async with aiohttp.ClientSession() as session:
        page = None
        while page is None:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = json.loads(await answer.text())
            page = next((each for each in pages if each["url"] == "about:blank"), None)
            await asyncio.sleep(0.05)
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            call = Calls(socket)
            await call("Network.enable")
            await call("Page.bringToFront")
            await call("Page.navigate", url=url)  # listened to from its first word on
            await call.until("EXCEPTION")
            await call("Runtime.evaluate", expression="document.querySelector('textarea').focus()")
            await call("Input.insertText", text="?")
            await call.until("ten rows up")
            shot = await call("Page.captureScreenshot")
            return base64.b64decode(shot["data"])


class Calls:
    """The debugging protocol: numbered calls, and between the answers what the page receives."""

    def __init__(self, socket):
        self.socket = socket
        self.number = 0
        self.heard = b""

    async def __call__(self, method, **params):
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": params})
        while True:
            message = await self._next()
            if message.get("id") == self.number:
                return message["result"]

    async def until(self, words):
        while words.encode() not in self.heard:
            await self._next()

    async def _next(self):
        message = json.loads((await self.socket.receive(timeout=PATIENCE_SECONDS)).data)
        if message.get("method") == "Network.webSocketFrameReceived":
            frame = message["params"]["response"]
            if frame["opcode"] == 2:
                self.heard += base64.b64decode(frame["payloadData"])
        return message
