"""A link that loses some of what is sent: slow, and nothing is wrong with any rank."""

from harness.chaos.kinds import Kind, Parameter, Undo, Unfit
from harness.chaos.outside import Target, drop, rank_sockets


def do(target: Target) -> Undo:
    undo = drop(rank_sockets(target), target.values["percent"])
    if undo is None:
        raise Unfit("the rank has no TCP connections with other ranks of its node")
    return undo


KIND = Kind(
    name="packet_loss",
    area="network",
    summary="lose a share of what arrives at the rank: nothing may be said",
    place="agent",
    do=do,
    also=("straggler",),
    blame="pair",
    parameters=(
        Parameter("percent", 1.0, "of the segments that are lost"),
        Parameter("seconds", 2.0, "for how long; 0: to the end"),
    ),
)
