"""SIGKILL to the controller: its launcher starts another, and no step is lost."""

import json
import signal

from harness.chaos.kinds import Kind, Unfit
from harness.chaos.outside import Target, send


def do(target: Target) -> None:
    if not target.head:
        raise Unfit("the controller is on node 0")
    found = json.loads((target.run_dir / "controller.json").read_text(encoding="utf-8"))
    send(int(found["pid"]), signal.SIGKILL)


KIND = Kind(
    name="controller_kill",
    area="process",
    summary="kill the controller: training goes on, nothing may be said",
    place="agent",
    do=do,
    on_node=True,
)
