"""Starts the ranks of trainer runs from one parent that has imported torch once.

Reads one JSON request a line: {"argv": [...], "ranks": N, "out": DIR, "kill": [rank, step] | null}
and answers each with {"codes": [...]}. A rank's output goes to DIR/RANK.out and DIR/RANK.err, its
steps to DIR/RANK.json. As a launcher would, it ends the others when one rank fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  any optimizer step imports it
from torch.distributed import TCPStore

import harness
from harness.sdk.checkpoint import checkpointer  # noqa: F401  (preloaded)
from harness.trainer import assemble, waits  # noqa: F401  (preloaded)
from harness.trainer import train as trainer
from harness.trainer.flags import parse


def start_store() -> tuple[int, int]:
    """A process that hosts the store of one launch; its pid and port."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        signal.pause()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return pid, int(pipe.read())


def rank_main(request: dict[str, Any], rank: int, port: int) -> NoReturn:
    out = Path(request["out"])
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(out / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    run, history = trainer.train, []

    def recorded(*args: Any) -> Any:
        history.extend(run(*args))
        return history

    trainer.train = recorded
    if request.get("kill") and request["kill"][0] == rank:

        def progress(step: int, **_facts: Any) -> None:
            if step == request["kill"][1]:
                # The others die at once with this one, and rank 0 shall have told of the step.
                while f"step {step}/" not in (out / "0.out").read_text():
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGKILL)

        harness.progress = progress
    code = 1
    try:
        code = trainer.main(request["argv"])
        (out / f"{rank}.json").write_text(json.dumps([asdict(step) for step in history]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launch(request: dict[str, Any]) -> list[int]:
    store, port = start_store()
    pids = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            rank_main(request, rank, port)
        pids.append(pid)
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        pid, status = os.wait()
        if pid in pids:
            codes[pid] = os.waitstatus_to_exitcode(status)
            if codes[pid] not in (0, 2):
                for other in set(pids) - set(codes):
                    os.kill(other, signal.SIGKILL)
    os.kill(store, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(store, 0)
    return [codes[pid] for pid in pids]


def main() -> None:
    parse([])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"codes": launch(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
