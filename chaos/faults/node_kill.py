"""A node that vanishes: every process of the run there is killed, the launcher first."""

import os
import signal

from harness.chaos.kinds import Kind
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    send(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


KIND = Kind(
    name="node_kill",
    area="process",
    summary="kill all processes of a node at once",
    place="agent",
    do=do,
    on_node=True,
    needs="several nodes",
    verdicts=("node_lost",),
    actions=("restart", "stop"),
    equal=False,
    leaves=True,
    note="Those that are left go on with fewer ranks, and so with other numbers. Without the head "
    "they end by themselves, and say so.",
)
