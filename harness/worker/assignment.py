"""What the agent and a worker of its agree on, without what only the worker needs: how it is
started, and what it is told then."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ASSIGNMENT = "HARNESS_WORKER"
"""The variable of the environment that an assignment stands in."""
STACK_SIGNAL = signal.SIGRTMAX - 5
"""Makes a rank write its stack; far from what programs use."""
MESSAGE_LIMIT = 180_000
"""Bytes of a request to the zygote."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What the agent tells a worker. Descriptors are open in the worker; paths may be unused."""

    rank: int
    world_size: int
    attempt: int
    agent_pid: int
    pulse: int
    link: int
    server: str
    """Unix socket to serve flight record and stacks on."""
    last_record: str
    """File for the flight record of a rank that raises."""
    fatal: str
    """File for the stack of a rank that dies of SIGSEGV and the like."""
    mode: str
    target: str
    arguments: tuple[str, ...]
    digests: int = 0
    """Least steps between two digests of what should equal other ranks'; 0: none are taken."""
    digest_share: float = 0.005
    """Of the rank's time, that they may take."""
    memory: int = -1
    """Memory file of the rank's state; -1: there is none."""
    restore_attempt: int = -1
    restore_step: int = -1
    """The generation in memory to go on from; -1: none."""
    audit_share: float = 0.0
    """Of the rank's time, that each kind of check of its own numbers may take; 0: none is made."""
    replays: int = 0
    """Least steps between two micro-batches that are computed again; 0: none are."""
    digest_exclude: tuple[str, ...] = ()
    """Patterns of names that digests leave alone."""
    armed: str = ""
    """Faults to be done on purpose in this rank, by harness.chaos.inside; empty: none."""
    spike_step: int = -1
    """Where an earlier attempt has seen the loss go up to stay; -1: nowhere."""
    spike_bound: float = 0.0
    """The loss above which it had."""
    closely: int = 0
    """Steps at the begin of which each is looked at, whatever it costs, and all of the state."""
    reread: str = ""
    """Words to tell then, as JSON (orders.Reread); empty: none."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Assignment":
        lists = {name: tuple(raw.get(name, ())) for name in ("arguments", "digest_exclude")}
        return cls(**{**raw, **lists})


def start_code(module: str, package: str = "worker") -> str:
    """What `python -c` runs to get into `main` of `harness.<package>.<module>`.

    Unlike `-m` it keeps the working folder from shadowing anything of ours, and it also works for
    an interpreter that has no Harness installed.
    """
    return (
        "import sys\n"
        "if sys.path[:1] == ['']: del sys.path[0]\n"
        f"sys.path.append({_ROOT!r})\n"
        f"from harness.{package}.{module} import main\n"
        f"sys.path.remove({_ROOT!r})\n"
        "main()"
    )


def stack_file(fatal: str) -> str:
    """Where a rank writes its stack when it is asked with STACK_SIGNAL."""
    return f"{fatal}.asked"
