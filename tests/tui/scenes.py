"""Runs as they are written: records through the real codec, and run directories made of them.

A scene is a list of records of one run at a chosen moment: gathering, running, crashed,
restarted, finished, failed. Times are fixed, so that views of them are fixed too.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import codec
from harness import events as e
from harness import orders as o
from harness.collectives import Collective
from harness.incidents import Incident, Verdict, Where
from harness.policy import Policy
from harness.sightings import Frame, ProcessFacts, Pulse
from harness.topology import Mesh, NodeRanks

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND
RUN = "swift-otter-12"
MESH = Mesh(names=("dp", "pp", "tp"), sizes=(2, 2, 2))
BROKEN = 5
WHERE = Where(file="train.py", line=88, function="forward")


class Scene:
    """Appends records with a clock of its own; `now_ns` is the time of the last one."""

    def __init__(
        self,
        *,
        run: str = RUN,
        nnodes: int = 1,
        mesh: Mesh | None = MESH,
        start_ns: int = START_NS,
        mono_ns: int = 0,
    ) -> None:
        self.run = run
        self.mesh = mesh
        self.nnodes = nnodes
        self.records: list[e.Record] = []
        self.start_ns = self.now_ns = start_ns
        self.mono_ns = mono_ns
        self.attempt = -1
        self._seq: dict[str, int] = {}

    def add(self, event: e.Event, *, source: str = "controller", after: float = 0.0) -> None:
        self.now_ns += int(after * SECOND)
        seq = self._seq.get(source, 0)
        self._seq[source] = seq + 1
        stamp = e.Stamp(
            run=self.run,
            attempt=self.attempt,
            source=source,
            seq=seq,
            wall_ns=self.now_ns,
            mono_ns=self.mono_ns + self.now_ns - self.start_ns,
        )
        self.records.append(e.Record(stamp=stamp, event=event))

    def start(self, *, chaos_allowed: bool = False) -> None:
        self.add(
            e.RunStarted(
                run=self.run,
                command=("train.py", "--steps", "400"),
                nnodes=self.nnodes,
                policy=Policy(),
                chaos_allowed=chaos_allowed,
                harness_version="0.1.0",
            )
        )
        self.add(e.ControllerStarted(pid=4242, address="127.0.0.1:4711", incarnation=0))

    def join(self, node_rank: int = 0, ranks: int = 8, pid: int = 4300) -> None:
        event = e.AgentJoined(
            node_rank=node_rank, host=f"host-{node_rank}", pid=pid, local_world_size=ranks
        )
        self.add(event, source=f"agent:{node_rank}", after=0.2)

    def launch(self, nodes: Sequence[NodeRanks], *, why: str = "first attempt") -> None:
        self.attempt += 1
        world = sum(node.size for node in nodes)
        host = o.HostStore(attempt=self.attempt, address="127.0.0.1", port=0)
        self.add(e.OrderGiven(node_rank=0, order=host))
        ready = e.StoreReady(attempt=self.attempt, address="127.0.0.1", port=4900)
        self.add(ready, source="agent:0", after=0.1)
        started = e.AttemptStarted(
            attempt=self.attempt, world_size=world, nodes=tuple(nodes), why=why
        )
        self.add(started)
        for node in nodes:
            for local_rank, rank in enumerate(node.ranks):
                self.add(
                    e.WorkerStarted(
                        rank=rank,
                        local_rank=local_rank,
                        node_rank=node.node_rank,
                        pid=5000 + 100 * self.attempt + rank,
                        launched_by="zygote",
                    ),
                    source=f"agent:{node.node_rank}",
                    after=0.01,
                )
        if self.mesh is not None and self.mesh.world_size == world:
            for rank in range(world):
                self.add(
                    e.MeshDeclared(
                        rank=rank,
                        names=self.mesh.names,
                        sizes=self.mesh.sizes,
                        coordinates=tuple(self.mesh.coordinates(rank).values()),
                    ),
                    source="agent:0",
                )

    def pulse(
        self,
        step: int | dict[int, int],
        ranks: Sequence[int] = range(8),
        *,
        phase: str = "step",
        node_rank: int = 0,
        late: Sequence[int] = (),
        after: float = 0.25,
    ) -> None:
        """All `ranks` have completed `step`; the heartbeat of the `late` ones stands at 0.5 s."""
        self.now_ns += int(after * SECOND)
        pulses = []
        for rank in ranks:
            at = step if isinstance(step, int) else step.get(rank, 0)
            mono = self.now_ns - self.start_ns
            pulses.append(
                Pulse(
                    rank=rank,
                    step=at,
                    phase=phase,
                    heartbeat_ns=SECOND // 2 if rank in late else mono,
                    step_ns=self.now_ns,
                    loss=round(5.5 / (1 + at / 100), 4) if at else None,
                    tokens=at * 4096,
                    total_steps=400,
                )
            )
        self.add(
            e.PulsesRead(node_rank=node_rank, pulses=tuple(pulses)), source=f"agent:{node_rank}"
        )

    def checkpoint(self, step: int, ranks: Sequence[int] = range(8)) -> None:
        for rank in ranks:
            saved = e.CheckpointSaved(
                rank=rank, step=step, path=f"ckpt/step{step:06d}", seconds=0.4
            )
            self.add(saved, source="agent:0")

    def raise_in(self, rank: int, step: int, message: str = "boom [not markup]") -> None:
        raised = e.WorkerRaised(
            rank=rank,
            exc_type="ValueError",
            message=message,
            where=WHERE,
            traceback='Traceback (most recent call last):\n  File "train.py", line 88\nValueError',
            raised_ns=self.now_ns,
            collectives=40,
            step=step,
        )
        self.add(raised, source="agent:0")

    def exit(
        self, rank: int, code: int | None, *, signal: int | None = None, ordered: bool = False
    ) -> None:
        self.now_ns += SECOND // 100
        exited = e.WorkerExited(
            rank=rank,
            pid=5000 + 100 * self.attempt + rank,
            exit_code=code,
            signal=signal,
            exited_ns=self.now_ns,
            ordered=ordered,
        )
        self.add(exited, source="agent:0")

    def evidence(self, collection: int, ranks: Sequence[int] = range(8)) -> None:
        order = o.CollectEvidence(collection=collection, attempt=self.attempt, why="rank 5 raised")
        self.add(e.OrderGiven(node_rank=0, order=order))
        entry = Collective(
            record_id=7,
            pg="2",
            pg_desc="mesh_tp",
            seq_id=101,
            op="all_reduce",
            sizes=((4, 16),),
            dtypes=("Float",),
            state="scheduled",
            retired=False,
            created_ns=self.now_ns,
        )
        for rank in ranks:
            taken = e.EvidenceTaken(
                collection=collection,
                rank=rank,
                process=ProcessFacts(
                    state="S",
                    wchan="futex_wait",
                    cpu_seconds=3.5,
                    rss_bytes=300 << 20,
                    threads=12,
                ),
                frames=(Frame(file="tp.py", line=41, function="all_reduce"),),
                frames_by="py-spy",
                collectives=(entry,),
                last_lines=(f"step=212 rank={rank}",),
            )
            self.add(taken, source="agent:0", after=0.02)
        self.add(
            e.EvidenceComplete(collection=collection, node_rank=0, seconds=0.3), source="agent:0"
        )

    def judge(self, *, step: int, action: str = "restart", why: str = "from step 200") -> None:
        verdict = Verdict(
            verdict="exception",
            first_failing=(BROKEN,),
            victims=tuple(rank for rank in range(8) if rank != BROKEN),
            innocent=(),
            cause="ValueError: boom [not markup]",
            reason="rank 5 raised before any other rank",
            confidence="proven",
            onset_ns=self.now_ns - SECOND,
            attempt=self.attempt,
            step=step,
            signature="exception:ValueError:train.py:88",
            coordinates=MESH.coordinates(BROKEN),
            node="host-0",
            where=WHERE,
        )
        incident = Incident(
            id=1 + sum(isinstance(r.event, e.IncidentOpened) for r in self.records),
            verdict=verdict,
            action=action,  # type: ignore[arg-type]
            action_reason=why,
            detected_ns=self.now_ns,
        )
        self.add(e.IncidentOpened(incident=incident), after=0.05)

    def stop_workers(self) -> None:
        order = o.StopWorkers(attempt=self.attempt, grace=2.0, why="rank 5 raised")
        self.add(e.OrderGiven(node_rank=0, order=order))
        for rank in range(8):
            if rank != BROKEN:
                self.exit(rank, None, signal=15, ordered=True)
        self.add(e.WorkersStopped(node_rank=0, attempt=self.attempt), source="agent:0")

    def close(self, incident_id: int, outcome: str, lost_steps: int | None) -> None:
        closed = e.IncidentClosed(
            incident_id=incident_id,
            outcome=outcome,  # type: ignore[arg-type]
            lost_steps=lost_steps,
        )
        self.add(closed)

    def end(self, outcome: str, exit_code: int, reason: str) -> None:
        self.add(e.RunEnded(outcome=outcome, exit_code=exit_code, reason=reason), after=0.1)

    def write(self, root: Path, *, name: str | None = None) -> Path:
        """The run directory of this scene under `root`, with `latest` pointing at it."""
        folder = root / (name or self.run)
        folder.mkdir(parents=True)
        header = {"schema": 1, "harness": "0.1.0", "run": self.run}
        lines = [json.dumps(header).encode(), *map(codec.encode, self.records)]
        (folder / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        latest = root / "latest"
        latest.unlink(missing_ok=True)
        latest.symlink_to(folder.name)
        return folder


ONE_NODE = (NodeRanks(node_rank=0, host="host-0", first_rank=0, size=8),)


def gathering(*, start_ns: int = START_NS, mono_ns: int = 0) -> Scene:
    scene = Scene(nnodes=2, mesh=None, start_ns=start_ns, mono_ns=mono_ns)
    scene.start()
    scene.join(0)
    return scene


def running(*, chaos_allowed: bool = False) -> Scene:
    scene = Scene()
    scene.start(chaos_allowed=chaos_allowed)
    scene.join()
    scene.launch(ONE_NODE)
    for step in range(1, 201, 20):
        scene.pulse(step)
    scene.pulse(200)
    scene.checkpoint(200)
    scene.pulse(212)
    return scene


def crashed() -> Scene:
    """Rank 5 has raised and gone; the verdict is given, the others are still alive."""
    scene = running()
    scene.raise_in(BROKEN, step=212)
    scene.exit(BROKEN, 1)
    scene.evidence(0)
    scene.judge(step=212)
    return scene


def restarted() -> Scene:
    scene = crashed()
    scene.stop_workers()
    scene.launch(ONE_NODE, why="restart 1 after exception of rank 5")
    loaded = e.CheckpointLoaded(rank=0, step=200, path="ckpt/step000200")
    scene.add(loaded, source="agent:0", after=1.0)
    scene.pulse(201, after=1.0)
    scene.close(1, "recovered", 12)
    scene.pulse(230)
    return scene


def finished() -> Scene:
    scene = restarted()
    scene.pulse(400, phase="teardown")
    for rank in range(8):
        scene.exit(rank, 0)
    scene.end("succeeded", 0, "all ranks exited 0")
    return scene


def failed() -> Scene:
    scene = running()
    scene.raise_in(BROKEN, step=212)
    scene.exit(BROKEN, 1)
    scene.evidence(0)
    scene.judge(step=212, action="stop", why="the same failure at step 212 twice")
    scene.stop_workers()
    scene.close(1, "stopped", None)
    scene.end("failed", 1, "exception of rank 5 at step 212, twice")
    return scene


def large(mesh: Mesh, *, hung: int) -> Scene:
    """A big world, 8 ranks a node, in which `hung` exited with code 17."""
    nodes = tuple(
        NodeRanks(node_rank=at, host=f"host-{at}", first_rank=8 * at, size=8)
        for at in range(mesh.world_size // 8)
    )
    scene = Scene(nnodes=len(nodes), mesh=mesh)
    scene.start()
    for node in nodes:
        scene.join(node.node_rank)
    scene.launch(nodes)
    for node in nodes:
        scene.pulse(40, node.ranks, node_rank=node.node_rank, after=0.0)
    scene.exit(hung, 17)
    return scene


SCENES: dict[str, Callable[[], Scene]] = {
    "gathering": gathering,
    "running": running,
    "crashed": crashed,
    "restarted": restarted,
    "finished": finished,
    "failed": failed,
}


def write_logs(folder: Path, attempt: int, lines: dict[int, Sequence[str]]) -> None:
    """The log files of `attempt`, one per rank."""
    logs = folder / "logs" / f"attempt{attempt}"
    logs.mkdir(parents=True, exist_ok=True)
    for rank, texts in lines.items():
        (logs / f"rank{rank:05d}.log").write_text("".join(f"{text}\n" for text in texts))
