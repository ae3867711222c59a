"""A link that carries little: the kernel paces what the rank sends to other ranks."""

from harness.chaos.kinds import Kind, Parameter, Undo, Unfit
from harness.chaos.outside import Target, pace


def do(target: Target) -> Undo:
    undo = pace(target, int(target.values["kib"] * 1024))
    if undo is None:
        raise Unfit("the rank has no TCP connections with other ranks of its node")
    return undo


KIND = Kind(
    name="network_slow",
    area="network",
    summary="slow down what the rank sends to others: no rank may be called stuck",
    place="agent",
    do=do,
    also=("straggler",),
    blame="pair",
    parameters=(
        Parameter("kib", 64.0, "KiB a second, for each connection"),
        Parameter("seconds", 3.0, "for how long; 0: to the end"),
    ),
)
