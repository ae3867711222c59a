"""Starting the workers of one attempt, forked from the zygote or as fresh processes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from harness.agent.environment import PRIVATE, worker_environ
from harness.agent.recordlogs import RecordLogs
from harness.agent.workers import Worker, WorkerFiles
from harness.agent.zygote_client import Zygote
from harness.config import Job
from harness.holdings import MemoryPlan
from harness.orders import StartWorkers
from harness.worker import layout, link, pulse
from harness.worker.assignment import ASSIGNMENT, Assignment, start_code


def _told_again(order: StartWorkers, rank: int) -> str:
    """What the rank is to tell of a tensor, as JSON; empty: nothing."""
    asked = order.reread
    if asked is None or asked.rank != rank:
        return ""
    return json.dumps({**asdict(asked), "attempt": order.attempt})


class Launcher:
    """Makes workers of `job`; `environ` is what all processes of the node share."""

    def __init__(
        self,
        job: Job,
        runtime_dir: Path,
        run_dir: Path,
        environ: Mapping[str, str],
        *,
        memory: Callable[[int], int | None] = lambda rank: None,
        armed: Callable[[int, int], str] = lambda rank, attempt: "",
    ) -> None:
        """`memory` gives the descriptor of a rank's memory file, if it has one; `armed` the faults
        that are to be done in a rank of an attempt."""
        self._job = job
        self._runtime_dir = runtime_dir
        self._run_dir = run_dir
        self._environ = environ
        self._memory = memory
        self._armed = armed

    def files(self, attempt: int, rank: int) -> WorkerFiles:
        logs = self._run_dir / "logs" / f"attempt{attempt}"
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        short = str(self._runtime_dir / f"a{attempt}r{rank}")  # unix sockets need short paths
        return WorkerFiles(
            log=logs / f"rank{rank:05d}.log",
            server=Path(f"{short}.sock"),
            last_record=Path(f"{short}.flight.json"),
            fatal=Path(f"{short}.fatal"),
            error=Path(f"{short}.error.json"),
        )

    async def start(self, order: StartWorkers, local_rank: int, zygote: Zygote | None) -> Worker:
        """One worker, running. Raises ZygoteGone or OSError when it could not be started."""
        rank = order.first_rank + local_rank
        files = self.files(order.attempt, rank)
        variables = worker_environ(self._job, order, local_rank, str(files.error), self._environ)
        ours, theirs = link.socket_pair()
        page = pulse.make_page(str(rank), layout.BYTES)
        memory, plan = self._memory(rank), order.memory or MemoryPlan()
        log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            assignment = Assignment(
                rank=rank,
                world_size=order.world_size,
                attempt=order.attempt,
                agent_pid=os.getpid(),
                pulse=page,
                link=theirs.fileno(),
                server=str(files.server),
                last_record=str(files.last_record),
                fatal=str(files.fatal),
                mode=self._job.mode,
                target=self._job.script,
                arguments=self._job.script_args,
                digests=self._job.policy.digests,
                digest_share=self._job.policy.digest_share,
                memory=-1 if memory is None else memory,
                restore_attempt=plan.restore_attempt,
                restore_step=plan.restore_step,
                audit_share=self._job.policy.audit_share,
                replays=self._job.policy.replays,
                digest_exclude=self._job.digest_exclude,
                armed=self._armed(rank, order.attempt) if self._job.chaos_allowed else "",
                spike_step=order.spike_step,
                spike_bound=order.spike_bound,
                closely=order.closely,
                reread=_told_again(order, rank),
            )
            if zygote is not None:
                request = {
                    "what": "rank",
                    "assignment": asdict(assignment),
                    "environ": variables,
                    "unset": list(PRIVATE),
                }
                given = [log, page, theirs.fileno(), *([] if memory is None else [memory])]
                pid = await zygote.fork(request, given)
            else:
                pid = self._start_fresh(assignment, variables, log)
            return Worker(
                rank=rank,
                local_rank=local_rank,
                attempt=order.attempt,
                pid=pid,
                pidfd=os.pidfd_open(pid),
                launched_by="fresh" if zygote is None else "zygote",
                files=files,
                page=pulse.PulseReader(page),
                logs=RecordLogs(page),
                link_end=ours,
                ended=asyncio.get_running_loop().create_future(),
                raised=asyncio.get_running_loop().create_future(),
                guest=self._job.mode != "command",
                store_port=order.master_port,
                nnodes=order.nnodes,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(page)
            os.close(log)

    def _start_fresh(self, assignment: Assignment, variables: Mapping[str, str], log: int) -> int:
        job = self._job
        memory = -1 if job.mode == "command" else assignment.memory
        environ = {**self._environ, **variables}
        if job.mode == "command":
            command = [
                sys.executable,
                "-c",
                start_code("execute"),
                str(os.getpid()),
                job.script,
                *job.script_args,
            ]
        else:
            python = job.python or sys.executable
            command = [python, *job.python_flags, "-u", "-c", start_code("bootstrap")]
            environ[ASSIGNMENT] = json.dumps(asdict(assignment))
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=job.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[fd for fd in (assignment.pulse, assignment.link, memory) if fd >= 0],
        )
        process.returncode = 0  # watched by pidfd; Popen must not collect it in its own cleaning
        return process.pid
