"""Starts the ranks of these tests from one parent that has imported torch once.

Reads one JSON request a line: {"program", "ranks", "out", "arguments"}, and answers each with
{"codes": [...]}. What a rank returned is in OUT/RANK.json, what it said in OUT/RANK.err. When one
dies the others live on: what they do then is what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch._dynamo
import torch.distributed as dist
from torch.distributed import TCPStore

from harness.sdk.checkpoint import checkpointer  # noqa: F401  (preloaded)
from tests.checkpoints import programs


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
    out, ranks = Path(request["out"]), request["ranks"]
    file = os.open(out / f"{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 2)
    code = 1
    try:
        if ranks > 1:
            store = TCPStore("127.0.0.1", port, is_master=False)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        result = getattr(programs, request["program"])(**request["arguments"])
        (out / f"{rank}.json").write_text(json.dumps(result))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)


def launch(request: dict[str, Any]) -> list[int]:
    store, port = start_store() if request["ranks"] > 1 else (0, 0)
    pids = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            rank_main(request, rank, port)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    if store:
        os.kill(store, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(store, 0)
    return codes


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"codes": launch(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
