"""The agent of a node does not hear the controller any more, for a while."""

import json
import os

from harness.chaos.kinds import Kind, Parameter, Undo, Unfit
from harness.chaos.outside import Target, connected_to, drop


def do(target: Target) -> Undo:
    found = json.loads((target.run_dir / "controller.json").read_text(encoding="utf-8"))
    port = int(str(found["address"]).rpartition(":")[2])
    undo = drop(connected_to(os.getpid(), port), 100.0)
    if undo is None:
        raise Unfit("the agent has no connection with the controller now")
    return undo


KIND = Kind(
    name="controller_partition",
    area="network",
    summary="cut a node's agent off from the controller for a while: nothing may be said",
    place="agent",
    do=do,
    on_node=True,
    parameters=(Parameter("seconds", 2.0, "until it is heard again; 0: never"),),
    note="Longer than `--agent-timeout` (5 s) the node counts as lost.",
)
