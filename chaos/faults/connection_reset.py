"""The rank's connections with other ranks, shut down from outside."""

import contextlib
import socket

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, rank_sockets


def do(target: Target) -> None:
    found = rank_sockets(target)
    if not found:
        raise Unfit("the rank has no TCP connections with other ranks of its node")
    for each in found:
        with each, contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


KIND = Kind(
    name="connection_reset",
    area="network",
    summary="shut down the rank's connections with other ranks",
    place="agent",
    do=do,
    verdicts=("exception", "network_stall"),
    actions=("restart",),
    blame="pair",
)
