"""A whole run under the real controller with the real decisions; only the workers are missing."""

import asyncio
import json
from typing import Any

from harness import events as e
from harness import orders as o
from harness.sightings import Pulse
from harness.wire.agent_link import AgentLink

RANKS = range(2)


class Node:
    """An agent that answers every order as one with two workers would."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self.orders: list[o.Order] = []
        self.attempt = 0

    def report(self, event: e.Event) -> None:
        self.link.report(self.attempt, event)

    def exited(self, rank: int, **how: Any) -> None:
        given = {"exit_code": None, "signal": None, "ordered": False, **how}
        self.report(e.WorkerExited(rank=rank, pid=100 + rank, exited_ns=1, **given))

    def step(self, step: int) -> None:
        pulses = [Pulse(rank=r, step=step, phase="step", heartbeat_ns=1) for r in RANKS]
        self.report(e.PulsesRead(node_rank=0, pulses=tuple(pulses)))

    def obey(self, order: o.Order) -> None:
        self.orders.append(order)
        match order:
            case o.HostStore():
                self.attempt = order.attempt
                ready = e.StoreReady(attempt=order.attempt, address="127.0.0.1", port=29000)
                self.report(ready)
            case o.StartWorkers():
                for rank in RANKS:
                    started = e.WorkerStarted(
                        rank=rank, local_rank=rank, node_rank=0, pid=1, launched_by="zygote"
                    )
                    self.report(started)
                self.step(1)
            case o.CollectEvidence():
                for rank in RANKS:
                    taken = e.EvidenceTaken(collection=order.collection, rank=rank, process=None)
                    self.report(taken)
                self.report(
                    e.EvidenceComplete(collection=order.collection, node_rank=0, seconds=0.1)
                )
            case o.StopWorkers():
                self.exited(0, signal=15, ordered=True)
                self.report(e.WorkersStopped(node_rank=0, attempt=order.attempt))

    def kinds(self) -> list[str]:
        return [type(order).__name__ for order in self.orders]


def test_a_run_that_succeeds(make_controller: Any) -> None:
    controller = make_controller(scripted=False)

    async def run() -> None:
        node = Node(controller.link())
        await node.link.join()
        async for order in node.link.orders():
            node.obey(order)
            if isinstance(order, o.StartWorkers):
                for rank in RANKS:
                    node.exited(rank, exit_code=0)
        assert node.kinds() == ["HostStore", "StartWorkers", "Shutdown"]
        assert node.orders[-1].exit_code == 0
        await node.link.close()

    asyncio.run(run())
    assert controller.wait() == 0
    ended = [r.event for r in controller.records() if isinstance(r.event, e.RunEnded)]
    assert [end.outcome for end in ended] == ["succeeded"]


def test_a_crash_is_judged_and_mended_by_a_controller_that_dies_twice(
    make_controller: Any,
) -> None:
    controller = make_controller(scripted=False)

    async def again() -> None:
        controller.kill()
        await asyncio.to_thread(controller.start)

    async def run() -> None:
        node = Node(controller.link())
        await node.link.join()
        async for order in node.link.orders():
            match order:
                case o.StartWorkers(attempt=0):
                    node.obey(order)
                    node.exited(1, signal=9)
                case o.CollectEvidence():
                    await again()
                    node.obey(order)
                case o.StopWorkers():
                    node.obey(order)
                    await again()
                case o.StartWorkers(attempt=1):
                    node.obey(order)
                    for rank in RANKS:
                        node.exited(rank, exit_code=0)
                case _:
                    node.obey(order)
        kinds = [kind for kind in node.kinds() if kind != "Notify"]
        assert kinds == [
            "HostStore",
            "StartWorkers",
            "CollectEvidence",
            "StopWorkers",
            "HostStore",
            "StartWorkers",
            "Shutdown",
        ]
        assert node.orders[-1].exit_code == 0
        await node.link.close()

    asyncio.run(run())
    assert controller.wait() == 0
    folder = controller.run_dir / "incidents" / "001"
    incident = json.loads((folder / "incident.json").read_text())
    assert (incident["class"], incident["first_failing"]) == ("killed_by_signal", [1])
    assert (incident["action"], incident["outcome"]) == ("restart", "recovered")
    assert "killed_by_signal" in (folder / "card.txt").read_text()
    started = [r.event for r in controller.records() if isinstance(r.event, e.ControllerStarted)]
    assert len(started) == 3
