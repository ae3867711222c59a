"""Memory that is taken at every step and never given back."""

from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind, Parameter

_KEPT: list[bytearray] = []


def do(inside: Inside) -> None:
    inside.every_step(lambda: _KEPT.append(bytearray(b"x" * (inside.values["kib"] << 10))))


KIND = Kind(
    name="memory_leak",
    area="resource",
    summary="take memory at every step and keep it",
    place="worker",
    do=do,
    verdicts=("resource_leak_memory",),
    actions=("report",),
    parameters=(Parameter("kib", 2048, "KiB each step"),),
    steps=400,
)
