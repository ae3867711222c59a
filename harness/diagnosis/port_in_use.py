"""port_in_use: a socket could not be bound because another process holds the port."""

import re

from harness import events as e
from harness.diagnosis.endings import Ending
from harness.diagnosis.signature import Signature
from harness.incidents import Verdict
from harness.state import RunState

_TEXT = re.compile(r"address already in use|EADDRINUSE|port \d+ is (?:already )?in use", re.I)
_HOLDER = re.compile(r"held by pid \d+ [^;]*")
_PORT = re.compile(r"\bport:? (\d+)", re.I)


def explains(ending: Ending) -> str | None:
    if ending.kind not in ("raised", "code") or not _TEXT.search(ending.message):
        return None
    port = _PORT.search(ending.message)
    where = f"port {port[1]}" if port else "a port it wants"
    return f"{where} is in use by another process ({ending.what})"


def port_in_use_verdict(state: RunState, failed: e.StoreFailed) -> Verdict | None:
    """The verdict when the rendezvous store could not have its port; None for another reason.

    No rank is named: none was started.
    """
    if state.run is None or not _TEXT.search(failed.why):
        return None
    host = state.nodes[0].host if 0 in state.nodes else ""
    port = state.run.master_port
    holder = _HOLDER.search(failed.why)
    cause = f"port {port} for the rendezvous store is in use by another process"
    cause += f", {holder[0]}" if holder else ""
    return Verdict(
        verdict="port_in_use",
        first_failing=(),
        victims=(),
        innocent=(),
        cause=cause if port else failed.why,
        reason=f"node 0 could not listen on it: {failed.why}",
        confidence="proven",
        onset_ns=state.stage_ns,
        attempt=failed.attempt,
        step=0,
        signature=Signature(verdict="port_in_use", what="store", detail=failed.why).text(),
        node=f"node 0, {host}",
    )
