"""The process of a node that has imported torch and forks ranks.

The agent starts it with one end of a socket pair and asks over that: one JSON object a message,
with the descriptors of the new process attached. Each process is forked twice, so that it becomes
a child of the agent (a subreaper), never of this one: the zygote may die without harm to the ranks.
Nothing here uses a thread, a process group or a GPU, and it refuses to fork when an import did.
"""

import array
import gc
import importlib
import json
import os
import socket
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

from harness.worker import blas, bootstrap, process, store
from harness.worker.assignment import MESSAGE_LIMIT, Assignment

IMPORTS = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.elastic.multiprocessing.errors",
)
MOST_DESCRIPTORS = 4
_ADOPTION_SECONDS = 30.0
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Without it is_available(), which imports may call, would start CUDA and spoil every fork."""


def main() -> None:
    """Entry. `argv`: pid of the agent, descriptor of the control socket."""
    agent, descriptor = (int(word) for word in sys.argv[1:3])
    if not process.bind_to_parent(agent):
        return
    control = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    started = time.monotonic()
    problem = _prepare()
    report = {"unfit": problem} if problem else {"ready": round(time.monotonic() - started, 3)}
    control.send(json.dumps(report).encode())
    if problem:
        return
    request, descriptors = _serve(control)
    control.close()
    if not process.bind_to_parent(agent, wait=_ADOPTION_SECONDS):
        os._exit(1)
    if request["what"] == "standby":
        request, descriptors = _stand_by(descriptors)
    _become(request, descriptors)


def _prepare() -> str:
    """Import; returns why this process must not fork, or an empty string."""
    given = os.environ.get(_NVML_CHECK)
    os.environ[_NVML_CHECK] = "1"
    with blas.held_back():
        for name in IMPORTS:
            try:
                importlib.import_module(name)
            except ImportError as error:
                if name in ("torch", "torch.distributed"):
                    return f"import {name} failed: {error}"
    if given is None:
        del os.environ[_NVML_CHECK]
    else:
        os.environ[_NVML_CHECK] = given
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "an import started CUDA, which does not survive a fork"
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing torch left {threads} threads running; forking needs a single one"
    gc.collect()
    gc.freeze()  # a collection in a rank shall not copy the pages that all ranks share
    return ""


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork on request. Returns in the forked process only; the zygote itself exits."""
    while True:
        request, descriptors = _receive(control)
        if request is None:
            os._exit(0)
        if _fork_twice(control, request["id"]):
            return request, descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_twice(control: socket.socket, number: int) -> bool:
    """True in the new process. Its forker is gone at once, so that the agent becomes its parent."""

    def answer(**words: Any) -> None:
        control.send(json.dumps({"id": number, **words}).encode())

    try:
        middle = os.fork()
    except OSError as error:
        answer(why=str(error))
        return False
    if middle:
        os.waitpid(middle, 0)
        return False
    try:
        pid = os.fork()
    except OSError as error:
        answer(why=str(error))
        os._exit(1)
    if pid:
        answer(pid=pid)
        os._exit(0)
    return True


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(
        MESSAGE_LIMIT, socket.CMSG_LEN(MOST_DESCRIPTORS * descriptors.itemsize)
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    request: dict[str, Any] | None = json.loads(data) if data else None
    return request, list(descriptors)


def _stand_by(descriptors: list[int]) -> tuple[dict[str, Any], list[int]]:
    """Wait for the agent to say what to be; the process ends when it does not want it."""
    with socket.socket(fileno=descriptors[0]) as told:
        request, descriptors = _receive(told)
    if request is None:
        os._exit(0)
    return request, descriptors


def _become(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Be what was asked for: a rank or the host of a store. The process is already bound."""
    log, *others = descriptors
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (nothing, log):
        if descriptor > 2:
            os.close(descriptor)
    if request["what"] == "store":
        store.host(others[0])
        os._exit(0)
    os.environ.update(request["environ"])
    for name in request["unset"]:
        os.environ.pop(name, None)
    _start_over()
    # The memory file is missing where the node could not make one.
    given = dict(zip(("pulse", "link", "memory"), others, strict=False))
    assignment = Assignment.from_json({**request["assignment"], **given})
    bootstrap.run(assignment)


def _start_over() -> None:
    """What a fresh interpreter would have drawn or set anew."""
    # The old one is frozen with the rest, and what is frozen is never collected: objects of the
    # script would not be finalized when the interpreter ends.
    sys.modules["__main__"] = ModuleType("__main__")
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    blas.let_go()
