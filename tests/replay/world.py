"""A world of agents and workers for tests of the pure core: it reacts to orders as real ones do,
keeps every record, and lets a test choose what happens when."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness import codec, recovery
from harness import events as e
from harness import orders as o
from harness.collectives import Collective
from harness.incidents import Incident, Where
from harness.policy import Policy
from harness.sightings import ProcessFacts, Pulse
from harness.state import RunState, fold, fold_all

SECOND = 1_000_000_000
START_NS = 1_790_000_000 * SECOND

WHERE = Where(file="/home/u/train.py", line=12, function="train")
CRY = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:40213: "
    "Connection reset by peer"
)
TIMED_OUT = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 6000ms"
    " for recv operation to complete"
)
SIZE_ABORT = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at pair.cc:465] op.preamble.length <= op.nbytes. 1600 vs 800."
    " Received data size does not match expected size.",
)


@dataclass
class World:
    """One run. `now_ns` is the only clock; `plan` runs to its fixpoint after every record."""

    nnodes: int = 1
    nproc: int = 4
    policy: Policy = field(default_factory=Policy)
    chaos_allowed: bool = False
    min_nodes: int = 0
    spares: int = 0
    grow: bool = True
    now_ns: int = START_NS
    records: list[e.Record] = field(default_factory=list)
    state: RunState = field(default_factory=RunState)
    seqs: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[int, o.Order]] = field(default_factory=list)
    """Orders that their node has not done yet, oldest first."""
    evidence: Callable[[int], dict[str, Any]] = lambda rank: {}
    """Extra fields of a rank's EvidenceTaken."""
    judged_before: int = 0
    heeds: bool = False
    """Whether the script asks after each step whether to stop."""
    clock_set: dict[int, int] = field(default_factory=dict)
    """By node: by how many nanoseconds its wall clock was set forward."""
    writes: bool = False
    """Whether nodes write their memory as a checkpoint when they are told to."""
    missed: int = 0
    """Proposed steps that ranks will have passed already."""
    one_host: bool = False
    """Whether all nodes are processes of one host, and have its clock."""

    def __post_init__(self) -> None:
        self.say(
            e.RunStarted(
                run="brave-otter-12",
                command=("train.py",),
                nnodes=self.nnodes,
                min_nodes=self.min_nodes,
                spares=self.spares,
                grow=self.grow,
                policy=self.policy,
                chaos_allowed=self.chaos_allowed,
                harness_version="0.1.0",
            ),
            plan=False,
        )
        self.say(e.ControllerStarted(pid=2, address="127.0.0.1:1", incarnation=0))

    @classmethod
    def resumed(cls, before: "World", lines: int) -> "World":
        """What a new controller finds that has only the first `lines` of `before`'s journal."""
        world = cls(nnodes=before.nnodes, nproc=before.nproc, policy=before.policy)
        world.spares, world.min_nodes = before.spares, before.min_nodes
        world.records = list(before.records[:lines])
        world.state = fold_all(world.records)
        world.now_ns = world.state.last_ns
        world.seqs = dict(before.seqs)
        return world

    # --- records ---------------------------------------------------------------------------

    def say(self, event: e.Event, node: int | None = None, *, plan: bool = True) -> None:
        source = "controller" if node is None else f"agent:{node}"
        seq = self.seqs[source] = self.seqs.get(source, -1) + 1
        attempt = max(len(self.state.attempts) - 1, 0)
        if isinstance(event, e.AttemptStarted):
            attempt = event.attempt
        record = e.Record(
            stamp=e.Stamp(
                run="brave-otter-12",
                attempt=attempt,
                source=source,
                seq=seq,
                wall_ns=self.now_ns + self.clock_set.get(-1 if node is None else node, 0),
                mono_ns=self.now_ns - START_NS,
            ),
            event=event,
        )
        if isinstance(event, e.EvidenceOfNode):
            record = codec.decode(codec.encode(record))  # in columns, as it comes over the wire
        self.records.append(record)
        fold(self.state, record)
        if isinstance(event, e.OrderGiven):
            self.pending.append((event.node_rank, event.order))
        if plan:
            self.settle()

    def settle(self) -> None:
        """Plan to the fixpoint. A plan that never rests fails."""
        for _ in range(100):
            decisions = recovery.plan(self.state, self.now_ns)
            if not decisions:
                return
            for decision in decisions:
                self.say(decision, plan=False)
        raise AssertionError(f"the plan never rests: {decisions}")

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.settle()

    def wake(self) -> bool:
        """Go on to the next deadline, if there is one."""
        at_ns = recovery.next_wake_ns(self.state, self.now_ns)
        if at_ns is None:
            return False
        self.now_ns = at_ns
        self.settle()
        return True

    # --- agents ----------------------------------------------------------------------------

    def join(self, node: int, pid: int = 0) -> None:
        self.say(
            e.AgentJoined(
                node_rank=node,
                host="host0" if self.one_host else f"host{node}",
                pid=pid or 100 + node,
                local_world_size=self.nproc,
            ),
            node,
        )

    def lose(self, node: int, why: str = "its agent was disconnected for 5 s") -> None:
        self.pending = [(of, order) for of, order in self.pending if of != node]
        self.say(e.AgentLost(node_rank=node, why=why))

    def obey(self, *kinds: type) -> None:
        """Every node does what it was told, as far as it is one of `kinds` (default: all)."""
        while True:
            due = next((it for it in self.pending if not kinds or isinstance(it[1], kinds)), None)
            if due is None:
                return
            self.pending.remove(due)
            self.now_ns += 1_000_000
            self.do(*due)

    def do(self, node: int, order: o.Order) -> None:
        match order:
            case o.HostStore():
                self.say(e.StoreReady(attempt=order.attempt, address="127.0.0.1", port=4000), node)
            case o.StartWorkers():
                for local in range(order.local_world_size):
                    rank = order.first_rank + local
                    self.say(
                        e.WorkerStarted(
                            rank=rank,
                            local_rank=local,
                            node_rank=node,
                            pid=1000 * (order.attempt + 1) + rank,
                            launched_by="zygote",
                        ),
                        node,
                    )
            case o.CollectEvidence():
                self._collect(node, order)
            case o.StopWorkers():
                self._stop(node, order)
            case o.StopAtStep(agreed=False):
                self._take_step(node, order, e.StopStepTaken)
            case o.SaveAtStep(agreed=False):
                self._take_step(node, order, e.SaveStepTaken)
            case o.KeepMemory() if self.writes:
                first = 0 in order.ranks
                kept = e.MemoryKept(
                    node_rank=node,
                    attempt=order.failed,
                    step=order.step,
                    path=f"ck/{order.step}" if first else "",
                )
                self.say(kept, node)
            case _:
                pass

    def _collect(self, node: int, order: o.CollectEvidence) -> None:
        attempt = self.state.attempts[order.attempt]
        seen = []
        for rank in attempt.nodes[node].ranks:
            alive = attempt.ranks[rank].alive
            process = ProcessFacts(
                state="S", wchan="futex", cpu_seconds=1.0, rss_bytes=1 << 30, threads=7
            )
            taken = e.EvidenceTaken(
                collection=order.collection, rank=rank, process=process if alive else None
            )
            seen.append(replace(taken, **self.evidence(rank)))
        if order.together:
            self.say(e.EvidenceOfNode(node_rank=node, taken=tuple(seen)), node)
        else:
            for taken in seen:
                self.say(taken, node)
        self.say(
            e.EvidenceComplete(collection=order.collection, node_rank=node, seconds=0.05), node
        )

    def _take_step(
        self,
        node: int,
        order: o.StopAtStep | o.SaveAtStep,
        answer: type[e.StopStepTaken] | type[e.SaveStepTaken],
    ) -> None:
        ranks = self.state.attempts[order.attempt].ranks.values()
        furthest = max((r.asked_stop for r in ranks if r.node_rank == node), default=-1)
        missed = self.missed > 0 and order.step >= 0
        self.missed -= missed
        self.say(
            answer(
                node_rank=node,
                attempt=order.attempt,
                step=order.step,
                furthest=order.step + 5 if missed else furthest,
                missed=missed,
            ),
            node,
        )

    def _stop(self, node: int, order: o.StopWorkers) -> None:
        attempt = self.state.attempts[order.attempt]
        for rank in attempt.nodes[node].ranks:
            if rank not in attempt.gone:
                self.exit(rank, signal=15, ordered=True)
        self.say(e.WorkersStopped(node_rank=node, attempt=order.attempt), node)

    # --- workers ---------------------------------------------------------------------------

    def start(self) -> "World":
        """All nodes join and all workers run."""
        for node in range(self.nnodes):
            self.join(node)
        self.obey()
        return self

    def node_of(self, rank: int) -> int:
        attempt = self.state.attempt
        return rank // self.nproc if attempt is None else attempt.ranks[rank].node_rank

    def wall_ns(self, rank: int) -> int:
        """The wall clock of the rank's node."""
        return self.now_ns + self.clock_set.get(self.node_of(rank), 0)

    def step(self, step: int, ranks: Sequence[int] | None = None, seconds: float = 0.1) -> None:
        """`ranks` (default all) complete `step`."""
        self.now_ns += int(seconds * SECOND)
        for node, placed in list(self.state.attempts[-1].nodes.items()):
            mine = [rank for rank in placed.ranks if ranks is None or rank in ranks]
            pulses = tuple(
                Pulse(
                    rank=rank,
                    step=step,
                    phase="step",
                    heartbeat_ns=self.now_ns,
                    step_ns=self.wall_ns(rank),
                    loss=4.0 / (1 + step),
                    total_steps=100,
                    asked_stop=step if self.heeds else -1,
                )
                for rank in mine
            )
            self.say(e.PulsesRead(node_rank=node, pulses=pulses), node)

    def phase(self, rank: int, phase: str) -> None:
        self.say(e.PhaseChanged(rank=rank, phase=phase), self.node_of(rank))

    def save(self, step: int) -> None:
        for rank in list(self.state.attempts[-1].ranks):
            self.say(
                e.CheckpointSaved(rank=rank, step=step, path=f"ck/{step}", seconds=0.1),
                self.node_of(rank),
            )

    def load(self, step: int) -> None:
        for rank in list(self.state.attempts[-1].ranks):
            self.say(
                e.CheckpointLoaded(rank=rank, step=step, path=f"ck/{step}"), self.node_of(rank)
            )

    def raises(
        self,
        rank: int,
        exc_type: str,
        message: str,
        *,
        where: Where | None = WHERE,
        traceback: str = "",
        cause: str = "",
        collectives: int = 10,
        ago: float = 0.0,
    ) -> None:
        """`ago` seconds before the record came."""
        step = self.state.attempts[-1].ranks[rank].step
        self.now_ns += 1_000_000
        self.say(
            e.WorkerRaised(
                rank=rank,
                exc_type=exc_type,
                message=message,
                where=where,
                traceback=traceback,
                raised_ns=self.wall_ns(rank) - int(ago * SECOND),
                collectives=collectives,
                step=step,
                cause=cause,
            ),
            self.node_of(rank),
        )

    def cries(self, *ranks: int) -> None:
        for rank in ranks:
            self.raises(rank, "RuntimeError", CRY)

    def exit(
        self,
        rank: int,
        code: int | None = None,
        signal: int | None = None,
        *,
        ordered: bool = False,
        **facts: Any,
    ) -> None:
        self.now_ns += 1_000_000
        self.say(
            e.WorkerExited(
                rank=rank,
                pid=self.state.attempts[-1].ranks[rank].pid,
                exit_code=code,
                signal=signal,
                exited_ns=self.wall_ns(rank),
                ordered=ordered,
                **facts,
            ),
            self.node_of(rank),
        )

    def finish(self) -> None:
        for rank, there in list(self.state.attempts[-1].ranks.items()):
            if there.exited is None:
                self.exit(rank, 0)
        self.obey()

    # --- results ---------------------------------------------------------------------------

    @property
    def incident(self) -> Incident:
        return self.state.incidents[-1]

    def judged(self) -> Incident:
        """Let everything happen that is due, until there is an incident."""
        self.obey(o.CollectEvidence)
        while len(self.state.incidents) == self.judged_before and self.wake():
            self.obey(o.CollectEvidence)
        self.judged_before = len(self.state.incidents)
        return self.incident

    def replayed(self) -> RunState:
        return fold_all(self.records)


def collective(
    seq: int,
    op: str = "all_reduce",
    sizes: tuple[tuple[int, ...], ...] = ((64,),),
    *,
    pg: str = "0",
    desc: str = "",
    retired: bool = True,
    dtype: str = "Float",
) -> Collective:
    """The `seq`-th entry of a Gloo flight record."""
    return Collective(
        record_id=seq,
        pg=pg,
        pg_desc=desc or ("default_pg" if pg == "0" else "undefined"),
        seq_id=seq,
        op=f"gloo:{op}",
        sizes=sizes,
        dtypes=(dtype,) if sizes else (),
        state="scheduled",
        retired=retired,
        created_ns=START_NS + seq * SECOND,
    )


def history(seq: int, *last: Collective) -> tuple[Collective, ...]:
    """`seq` equal collectives, then `last`."""
    return (*(collective(at) for at in range(seq)), *last)
