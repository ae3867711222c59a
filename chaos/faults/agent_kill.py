"""SIGKILL to the agent of a node; its ranks die with it."""

import os
import signal

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target


def do(target: Target) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


KIND = Kind(
    name="agent_kill",
    area="process",
    summary="kill the agent of a node; its ranks die with it",
    place="agent",
    do=do,
    on_node=True,
    needs="several nodes",
    verdicts=("node_lost",),
    actions=("restart", "stop"),
    equal=False,
    note="Those that are left go on with fewer ranks, and so with other numbers.",
)
