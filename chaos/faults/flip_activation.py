"""One bit of what a layer gives, in one forward pass: all replicas agree on what comes of it."""

from typing import Any

from harness.chaos.bits import BIT, flip
from harness.chaos.inside import Inside
from harness.chaos.kinds import Kind


def do(inside: Inside) -> None:
    import torch

    def hook(module: Any, inputs: Any, output: Any) -> None:
        fits = isinstance(output, torch.Tensor) and output.is_floating_point()
        if fits and not list(module.children()) and inside.due():
            inside.strike()
            flip(inside, [output.data])  # autograd is not to see that it was written to

    torch.nn.modules.module.register_module_forward_hook(hook)


KIND = Kind(
    name="flip_activation",
    area="tensor",
    summary="flip one bit of one layer's output in one forward pass",
    place="worker",
    do=do,
    verdicts=("silent_data_corruption",),
    actions=("rollback", "restart", "report"),
    parameters=(BIT,),
    steps=12,
    equal=False,
    note="Seen only where audits compute again what is hit: `--audit-share 1 --replays 1`.",
)
