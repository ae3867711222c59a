"""Nothing that other ranks send arrives any more; what the rank sends is not acknowledged."""

from harness.chaos.kinds import Kind, Parameter, Undo, Unfit
from harness.chaos.outside import Target, drop, rank_sockets


def do(target: Target) -> Undo:
    undo = drop(rank_sockets(target), 100.0)
    if undo is None:
        raise Unfit("the rank has no TCP connections with other ranks of its node")
    return undo


KIND = Kind(
    name="partition",
    area="network",
    summary="drop all that arrives at the rank from other ranks",
    place="agent",
    do=do,
    verdicts=("network_stall",),
    actions=("restart",),
    blame="pair",
    parameters=(Parameter("seconds", 0.0, "until it arrives again; 0: never"),),
    note="Done with a socket filter on the rank's own sockets; a new attempt has new ones.",
)
