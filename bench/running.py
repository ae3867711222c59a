"""A script under `harness run` as the exams launch it, and what `harness report` says of it.

Every run has an empty working directory of its own and a limit of time; at the limit its launchers
get SIGTERM, which takes the whole tree with it, and only then SIGKILL.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.portholder import free_port

_RUN = "case"
_SECONDS_TO_END = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a script is run; `timeout` in seconds."""

    nproc: int
    nnodes: int = 1
    args: Sequence[str] = ()
    """Options of `harness run`."""
    script_args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run. `codes` are those of the launchers, None for one that had to be stopped."""

    here: Path
    codes: tuple[int | None, ...]
    seconds: float
    incidents: tuple[dict[str, Any], ...]

    @property
    def journal(self) -> Path:
        return self.here / "runs" / _RUN / "journal.jsonl"

    @property
    def at_peace(self) -> bool:
        """No incident, and every launcher ended with 0."""
        return not self.incidents and set(self.codes) == {0}


@contextmanager
def run(script: Path, how: Launch, prepare: Path | None = None) -> Iterator[Ran]:
    """Run `script` to its end; its working directory lasts as long as the context.

    `prepare` is a Python script that is run there first. RuntimeError when the run left no report.
    """
    with tempfile.TemporaryDirectory(prefix="harness-exam-") as name:
        here = Path(name)
        if prepare is not None:
            subprocess.run([sys.executable, str(prepare)], cwd=here, check=True)
        began = time.monotonic()
        codes = launch(script, how, here)
        seconds = time.monotonic() - began
        yield Ran(here=here, codes=codes, seconds=seconds, incidents=incidents(here))


def launch(script: Path, how: Launch, here: Path) -> tuple[int | None, ...]:
    """Exit codes of the launchers, one a node."""
    port = str(free_port()) if how.nnodes > 1 else ""
    launchers = []
    for node in range(how.nnodes):
        command = [sys.executable, "-m", "harness", "run", "--nproc-per-node", str(how.nproc)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **how.env}
        if how.nnodes > 1:
            command += ["--nnodes", str(how.nnodes), "--node-rank", str(node)]
            command += ["--master-addr", "127.0.0.1", "--master-port", port]
            environ["NODE"] = str(node)
        if node == 0:
            command += ["--run-name", _RUN]
        launchers.append(
            subprocess.Popen(
                [*command, *how.args, str(script), *how.script_args],
                cwd=here,
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    deadline = time.monotonic() + how.timeout
    return tuple(wait(process, deadline) for process in launchers)


def wait(process: "subprocess.Popen[bytes]", deadline: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def incidents(here: Path) -> tuple[dict[str, Any], ...]:
    """Of the run whose working directory was `here`."""
    report = subprocess.run(
        [sys.executable, "-m", "harness", "report", "--json", _RUN],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.stdout:
        raise RuntimeError(f"no report: {report.stderr.strip() or report.returncode}")
    return tuple(json.loads(report.stdout)["incidents"])


def load_text() -> str:
    """How busy the machine has been lately, this bench included."""
    return f"Load average of the last quarter of an hour: {os.getloadavg()[2]:.1f}."
