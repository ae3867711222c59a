"""`python -m harness.agent --runtime-dir DIR --controller ADDR:PORT`: one node's supervisor."""

import argparse
import asyncio
import ctypes
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from harness import runtimedir
from harness.agent import processes, trimming
from harness.agent.line import Link
from harness.agent.supervisor import Agent
from harness.config import Job
from harness.errors import HarnessError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAUNCHER_GONE = signal.SIGUSR2
_SHOW_STACKS = signal.SIGUSR1
"""From the launcher, which has got SIGUSR1 or SIGQUIT."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.agent", allow_abbrev=False)
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--controller", required=True, metavar="ADDR:PORT")
    options = parser.parse_args()
    try:
        job = Job.read(options.runtime_dir / runtimedir.JOB)
    except HarnessError as error:
        print(f"harness: {error.message}", file=sys.stderr)
        return int(error.exit_code)
    runtimedir.hold(options.runtime_dir)  # to the end: also when the launcher is gone before
    adopt_orphans(options.runtime_dir)
    trimming.share_one_heap()
    return asyncio.run(_supervise(job, options.runtime_dir, options.controller))


def adopt_orphans(runtime_dir: Path) -> None:
    """Be the reaper of all that workers leave, and go at once when the launcher is gone."""
    launcher = os.getppid()

    def launcher_gone(*_: object) -> None:
        processes.kill_below(os.getpid(), seconds=3.0)
        shutil.rmtree(runtime_dir, ignore_errors=True)
        os._exit(128 + _LAUNCHER_GONE)

    signal.signal(_LAUNCHER_GONE, launcher_gone)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, _LAUNCHER_GONE, 0, 0, 0)
    if os.getsid(0) != os.getpid() and os.getpgid(0) != os.getpid():
        os.setsid()
    if os.getppid() != launcher:
        launcher_gone()


async def _supervise(job: Job, runtime_dir: Path, controller: str) -> int:
    from harness.wire.agent_link import AgentLink
    from harness.wire.channel import heartbeat_of, nnodes_text
    from harness.wire.tls import Tls

    link = AgentLink(
        address=controller,
        node_rank=job.node_rank,
        local_world_size=job.nproc_per_node,
        host=socket.gethostname(),
        pid=os.getpid(),
        token=job.token,
        tls=Tls.of_job(job),
        nnodes=nnodes_text(job.min_nodes, job.nnodes),
        heartbeat=heartbeat_of(job.policy, job.nnodes),
        controller_timeout=job.policy.controller_timeout,
        notice=lambda text: print(f"harness: {text}", file=sys.stderr, flush=True),
    )
    return await serve(job, runtime_dir, link)


async def serve(job: Job, runtime_dir: Path, link: Link) -> int:
    """Run an agent over `link` until its Shutdown; returns the exit code."""
    agent = Agent(job, runtime_dir, link)
    loop = asyncio.get_running_loop()
    for number in _FORWARDED:
        loop.add_signal_handler(number, agent.on_signal, int(number), number.name)
    loop.add_signal_handler(_SHOW_STACKS, agent.on_stacks_wanted)
    return await agent.run()


if __name__ == "__main__":
    sys.exit(main())
