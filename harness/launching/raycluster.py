"""A run on a Ray cluster: one launcher in each bundle of a placement group. Ray places the bundles,
and places one anew when its node is lost; ranks, restarts and verdicts are the run's own."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import ExitCode, UsageError
from harness.processes import before_exec

_PLACED_SECONDS = 5.0
"""Between two words on nodes that are waited for."""
_LAST_SECONDS = 30.0
"""For the other launchers to end, once that of the first node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What `harness launch ray` was asked for. `command` is what stands after `harness run`."""

    command: tuple[str, ...]
    address: str = "auto"
    nodes: int = 1
    gpus: int = 0
    """Per node; 0: none are asked for."""
    cpus: int = 1
    restarts: int = 10
    """How often lost nodes are replaced."""


class _Node:
    """An actor in a bundle: it starts a launcher beside it, and passes signals on."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._launcher: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        """Ray writes it before each line of output."""
        return f"node {self._rank}"

    def meeting(self) -> str:
        """HOST:PORT at which the others find this node."""
        import ray

        with socket.create_server(("", 0)) as free:
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, command: list[str], environ: dict[str, str], folder: str) -> int:
        """The exit code of `harness run`. It dies with this actor, and all of its node with it."""
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "harness", "run", *command],
            env={**os.environ, **environ},
            cwd=folder,
            preexec_fn=before_exec(signal.SIGKILL),  # noqa: PLW1509 - it takes no lock
        )
        return self._launcher.wait()

    def signal(self, number: int) -> None:
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.send_signal(number)


class _Driver:
    """The launchers of one run, by node rank."""

    def __init__(self, ray: Any, wanted: Cluster, group: Any, say: Callable[[str], None]) -> None:
        self._ray, self._wanted, self._group, self._say = ray, wanted, group, say
        self._environ = {"HARNESS_TOKEN": secrets.token_hex(16)}
        self._actors: dict[int, Any] = {}
        self._ends: dict[Any, int] = {}
        self._replaced = 0
        self._meeting = ""

    def run(self) -> int:
        """Until the launcher of the first node has ended; its exit code."""
        self._begin()
        while True:
            done, _ = self._ray.wait(list(self._ends), timeout=_PLACED_SECONDS)
            for end in done:
                node = self._ends.pop(end)
                code = self._code(end)
                if node == 0 and code is not None:
                    self._wait_for_others()
                    return code
                if code is None:
                    self._replace(node)
            if not self._ends:
                raise UsageError("no launcher is left", help="see their output above")

    def signal(self, number: int) -> None:
        """To the launcher of the first node, which speaks for all."""
        if 0 in self._actors:
            self._actors[0].signal.remote(number)

    def end(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._ends.clear()

    def _begin(self) -> None:
        self._place(0)
        self._meeting = self._ray.get(self._actors[0].meeting.remote())
        for node in range(self._wanted.nodes):
            if node:
                self._place(node)
            self._start(node)

    def _place(self, node: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as On

        where = On(placement_group=self._group, placement_group_bundle_index=node)
        kind = self._ray.remote(_Node).options(
            num_cpus=self._wanted.cpus,
            num_gpus=self._wanted.gpus,
            scheduling_strategy=where,
            max_concurrency=4,  # a signal must not wait for the run to end
        )
        self._actors[node] = kind.remote(node)

    def _start(self, node: int) -> None:
        nodes = self._wanted.nodes
        meet = []
        if nodes > 1:  # as a range, so that another node may come for a lost one
            meet = ["--nnodes", f"{nodes}:{nodes}", "--node-rank", str(node)]
            meet += ["--rdzv-endpoint", self._meeting]
        gpus = ["--nproc-per-node", str(self._wanted.gpus)] if self._wanted.gpus else []
        command = [*meet, *gpus, *self._wanted.command]
        actor = self._actors[node]
        self._ends[actor.run.remote(command, self._environ, os.getcwd())] = node

    def _code(self, end: Any) -> int | None:
        """How a launcher ended; None when its node was lost."""
        try:
            return int(self._ray.get(end))
        except self._ray.exceptions.RayActorError:
            return None
        except self._ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            raise UsageError(f"a node cannot start harness: {last}") from None

    def _replace(self, node: int) -> None:
        self._replaced += 1
        if self._replaced > self._wanted.restarts:
            raise _Lost(f"node {node} was lost, after {self._wanted.restarts} others")
        if node == 0:
            # It held the controller: all come together anew, and go on from the last checkpoint.
            self._say("node 0 was lost, and the controller with it; Ray places all nodes anew")
            self.end()
            self._begin()
            return
        self._say(f"node {node} was lost; Ray places another one")
        self._place(node)
        self._start(node)

    def _wait_for_others(self) -> None:
        if self._ends:
            self._ray.wait(list(self._ends), num_returns=len(self._ends), timeout=_LAST_SECONDS)


class _Lost(Exception):
    """Too many nodes were lost."""


def run_on_ray(wanted: Cluster, say: Callable[[str], None]) -> int:
    """Run on the nodes that Ray gives; the exit code of `harness run`. `say` shows lines.

    SIGINT and SIGTERM go to the run: the first stops it, SIGTERM preempts it; a second SIGINT
    leaves at once. Raises UsageError when Ray is not there, or has no such nodes.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # ranks may print the same
    try:
        import ray
    except ImportError:
        raise UsageError(
            "Ray is not installed here", help="run it where your cluster's Python is"
        ) from None
    try:
        ray.init(address=wanted.address, runtime_env={"env_vars": _carried()}, log_to_driver=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster at {wanted.address}: {str(error).splitlines()[0]}",
            help="start one with `ray start --head`, or name it with --address",
        ) from None
    group = None
    try:
        group = _reserve(ray, wanted, say)
        driver = _Driver(ray, wanted, group, say)
        before = {number: _pass_on(driver, number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return driver.run()
        except _Lost as lost:
            say(str(lost))
            return int(ExitCode.NODE_LOST)
        finally:
            driver.end()
            for number, handler in before.items():
                signal.signal(number, handler)
    finally:
        with suppress(Exception):  # of a cluster that is gone nothing is left to give back
            if group is not None:
                ray.util.remove_placement_group(group)
        ray.shutdown()


def _reserve(ray: Any, wanted: Cluster, say: Callable[[str], None]) -> Any:
    """A bundle on each of so many nodes, once there are as many."""
    bundle: dict[str, float] = {"CPU": wanted.cpus}
    if wanted.gpus:
        bundle["GPU"] = wanted.gpus
    group = ray.util.placement_group([bundle] * wanted.nodes, strategy="STRICT_SPREAD")
    began, told = time.monotonic(), False
    while not group.wait(_PLACED_SECONDS):
        if not told:
            here = sum(all(n["Resources"].get(k, 0) >= v for k, v in bundle.items())
                       for n in ray.nodes() if n["Alive"])  # fmt: skip
            say(f"waits for {wanted.nodes} nodes with {_text(bundle)}; the cluster has {here}")
            told = True
    if told:
        say(f"has its nodes after {time.monotonic() - began:.0f} s")
    return group


def _text(bundle: dict[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in bundle.items())


def _carried() -> dict[str, str]:
    """What the nodes get of this environment: settings of the run, and where Python looks."""
    names = [n for n in os.environ if n.startswith(("HARNESS_", "PET_")) or n == "PYTHONPATH"]
    return {name: os.environ[name] for name in names if name != "HARNESS_TOKEN"}


def _pass_on(driver: _Driver, number: int) -> Any:
    """Have signal `number` of this process reach the run; the handler that it had."""
    seen = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        if seen > 1 and number == signal.SIGINT:
            raise KeyboardInterrupt
        driver.signal(number)

    return signal.signal(number, handle)
