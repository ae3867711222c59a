"""Versions of what Harness stands on, and whether its tools may look into other processes."""

import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata

from harness.agent.spyreport import NoStack
from harness.agent.stacks import spy, what_to_allow
from harness.doctor.checks import Check
from harness.processes import before_exec
from harness.version import version

LEAST: Mapping[str, str] = {
    "torch": "2.11",
    "click": "8.2",
    "grpcio": "1.72",
    "msgspec": "0.19",
    "protobuf": "6.30",
    "psutil": "6",
    "py-spy": "0.4",
    "rich": "13",
    "textual": "8.2",
}
"""As pyproject.toml has them."""
LEAST_PYTHON = (3, 10)
_SPY_SECONDS = 5.0


def versions() -> Check:
    """Whether all is there and new enough. Nothing is imported for it."""
    found = {name: _version(name) for name in LEAST}
    missing = [name for name, there in found.items() if there is None]
    old = [
        f"{name} {there} is older than {LEAST[name]}"
        for name, there in found.items()
        if there is not None and _numbers(there) < _numbers(LEAST[name])
    ]
    python = platform.python_version()
    facts = {"harness": version(), "python": python, "packages": found}
    wrong = [*(f"{name} is missing" for name in missing), *old]
    if sys.version_info < LEAST_PYTHON:
        wrong.append(f"python {python} is older than {'.'.join(map(str, LEAST_PYTHON))}")
    if wrong:
        names = [name for name in LEAST if any(text.startswith(f"{name} ") for text in wrong)]
        wanted = " ".join(f"'{name}>={LEAST[name]}'" for name in names)
        help = f"{sys.executable} -m pip install {wanted}" if wanted else "use a newer Python"
        return Check(name="versions", level="fail", says="; ".join(wrong), help=help, facts=facts)
    says = f"harness {facts['harness']}, python {python}, torch {found['torch']}"
    return Check(name="versions", level="ok", says=says, facts=facts)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` as (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def ptrace() -> Check:
    """Whether the stack of a process beside us can be taken: tried on one of our own making."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=before_exec(signal.SIGKILL),  # noqa: PLW1509
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        spy(child.pid, _SPY_SECONDS)
    except NoStack as why:
        refused = "was refused" in str(why)
        return Check(
            name="ptrace",
            level="warn",
            says=f"stacks cannot be taken from outside: {str(why).partition(': ')[0]}",
            help=f"a rank that holds the GIL or is stopped then shows no stack; {what_to_allow()}"
            if refused
            else str(why),
            facts={"allowed": False},
        )
    finally:
        child.kill()
        child.communicate()
    return Check(
        name="ptrace",
        level="ok",
        says="py-spy can look into other processes",
        facts={"allowed": True},
    )
