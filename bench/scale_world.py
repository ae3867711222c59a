"""The ranks of bench/scale.py: what a training on dp x pp x tp would tell, and show when it hangs.

In every step a rank reduces over its tp group, then over its dp group, then over the world. In the
hang one rank leaves out its reduction over tp: its neighbours wait there, theirs in dp one
operation later, and everybody else, itself among them, in that of the world.
"""

import time
from dataclasses import replace

import msgspec
from tui_world import PER_NODE

from harness import events as e
from harness.collectives import Collective, GroupCreation
from harness.incidents import Where
from harness.packing import packed
from harness.recovery.watching import in_thousands, most_at_an_end, most_entries
from harness.sightings import (
    Activity,
    Flow,
    Frame,
    ProcessFacts,
    Pulse,
    RankArrivals,
    Traffic,
)
from harness.topology import Mesh

RUN = "scale"
STEP_SECONDS = 0.25
_TRAIN = "/home/u/train.py"
_BREAKS = Where(file=_TRAIN, line=118, function="Trainer.step")
_LIBRARY = "/home/u/venv/lib/python3.11/site-packages/torch"
_INSIDE = (
    Frame(file=f"{_LIBRARY}/distributed/distributed_c10d.py", line=3252, function="all_reduce"),
    Frame(
        file=f"{_LIBRARY}/distributed/c10d_logger.py", line=83,
        function="_exception_logger.<locals>.wrapper",
    ),
)  # fmt: skip
_OUTSIDE = (
    Frame(file="/home/u/parallel/reduce.py", line=88, function="Reduced.forward"),
    Frame(file=f"{_LIBRARY}/autograd/function.py", line=581, function="Function.apply"),
    Frame(file="/home/u/parallel/linear.py", line=141, function="RowParallel.forward"),
    Frame(file=f"{_LIBRARY}/nn/modules/module.py", line=1787, function="Module._call_impl"),
    Frame(file=f"{_LIBRARY}/nn/modules/module.py", line=1776, function="Module._wrapped_call_impl"),
    Frame(file="/home/u/model.py", line=203, function="Block.forward"),
    Frame(file=_TRAIN, line=121, function="Trainer.step"),
    Frame(file=_TRAIN, line=210, function="Trainer.run"),
    Frame(file=_TRAIN, line=295, function="<module>"),
)
_HUNG_STEP = 1000
"""The step that hangs, as flight records count: they are made before the clock runs."""
_PHASES = ("tp", "dp", "default_pg")


class World:
    """`nodes` nodes of PER_NODE ranks; the innermost axis is as long as a node is large."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.size = nodes, nodes * PER_NODE
        pp = 4 if nodes >= 8 else 1
        self.mesh = Mesh(names=("dp", "pp", "tp"), sizes=(nodes // pp, pp, PER_NODE))
        self.hung = False
        self.stuck = self.size // 2 + 3
        self._began = time.time_ns()
        self._hung_ns = 0
        self._encoder = msgspec.json.Encoder()
        self._all = tuple(range(self.size))
        self._place = [self.mesh.coordinates(rank) for rank in range(self.size)]
        self._told: dict[int, int] = {}
        self._kept: dict[tuple[int, int, bool], list[tuple[str, bytes]]] = {}

    def encode(self, event: object) -> bytes:
        return self._encoder.encode(event)

    def record(self, source: str, seq: int, name: str, event: bytes) -> bytes:
        """A line as `codec.encode` makes it of a record stamped now."""
        stamp = (
            f'{{"stamp":{{"run":"{RUN}","attempt":0,"source":"{source}","seq":{seq},"wall_ns":'
            f'{time.time_ns()},"mono_ns":{time.monotonic_ns()}}},"type":"{name}","event":'
        )
        return stamp.encode() + event + b"}"

    def hang(self) -> None:
        """From now on nobody makes progress."""
        self.hung, self._hung_ns = True, time.time_ns()
        self._told.clear()

    def crash(self) -> list[tuple[str, bytes]]:
        """What its agent says of the rank that raises, instead of leaving something out."""
        now, rank = time.time_ns(), self.stuck
        raised = e.WorkerRaised(
            rank=rank, exc_type="ValueError", message="a batch of another shape", where=_BREAKS,
            traceback="", raised_ns=now, collectives=3 * self.step, step=self.step,
        )  # fmt: skip
        gone = e.WorkerExited(
            rank=rank, pid=20_000 + rank, exit_code=1, signal=None, exited_ns=now, ordered=False
        )
        return [(type(event).__name__, self.encode(event)) for event in (raised, gone)]

    def prepare(self, harm: str) -> None:
        """Make what looks will show after a hang or a crash: it takes seconds."""
        most = most_entries(self.size) if harm == "hang" else most_at_an_end(self.size)
        for node in range(self.nodes):
            self._evidence(node, most, in_thousands(self.size))

    @property
    def step(self) -> int:
        """Steps that all have completed."""
        end = self._hung_ns or time.time_ns()
        return int((end - self._began) / 1e9 / STEP_SECONDS)

    # --- events, encoded ---------------------------------------------------------------------

    def start(self, node: int) -> list[tuple[str, bytes]]:
        """What an agent reports until its ranks train."""
        said: list[e.Event] = []
        for local in range(PER_NODE):
            rank = node * PER_NODE + local
            place = self._place[rank]
            said.append(
                e.WorkerStarted(
                    rank=rank, local_rank=local, node_rank=node, pid=20_000 + rank,
                    launched_by="zygote",
                )
            )  # fmt: skip
            said.append(
                e.MeshDeclared(
                    rank=rank, names=self.mesh.names, sizes=self.mesh.sizes,
                    coordinates=tuple(place.values()),
                )
            )  # fmt: skip
            said += self._made(rank)
        return [(type(event).__name__, self.encode(event)) for event in said]

    def pulses(self, node: int) -> bytes:
        """Of all ranks of `node`; of none when nothing has changed, as agents do."""
        step, now = self.step, time.time_ns()
        if self._told.get(node) == step:
            return self.encode(e.PulsesRead(node_rank=node, pulses=()))
        self._told[node] = step
        pulse = Pulse(
            rank=0, step=step, phase="step", heartbeat_ns=time.monotonic_ns(), step_ns=now,
            loss=2.5, tokens=step * 4096, total_steps=100_000, collectives=3 * step,
        )  # fmt: skip
        ranks = range(node * PER_NODE, (node + 1) * PER_NODE)
        more = self._begun if self.hung else lambda _: 0
        pulses = tuple(
            replace(pulse, rank=rank, collectives=3 * step + more(rank)) for rank in ranks
        )
        return self.encode(e.PulsesRead(node_rank=node, pulses=pulses))

    def arrivals(self, node: int, count: int) -> bytes:
        """A node's ranks came to eight collectives of their group, one after the other."""
        first = max(0, self.step * 3 - 24)
        records = tuple(range(first, first + 24, 3))
        seqs = tuple(record // 3 for record in records)
        ranks = tuple(
            RankArrivals(
                rank=node * PER_NODE + local, records=records, groups=(0,) * 8, seqs=seqs,
                entered_us=tuple(1000 * at + local for at in range(8)), calls=(0,) * 8,
            )
            for local in range(PER_NODE)
        )  # fmt: skip
        return self.encode(
            e.ArrivalsRead(
                node_rank=node, base_ns=time.time_ns(), groups=(self._pg("tp", node * PER_NODE),),
                ops=("all_reduce",), ranks=ranks, calls=("all_reduce 8192 float",),
            )
        )  # fmt: skip

    def evidence(
        self, node: int, collection: int, most: int, *, together: bool
    ) -> list[tuple[str, bytes]]:
        """What a look at the ranks of `node` shows."""
        number = b'"collection":%d,' % collection
        seen = [
            (name, taken.replace(b'"collection":0,', number))
            for name, taken in self._evidence(node, most, together)
        ]
        complete = e.EvidenceComplete(collection=collection, node_rank=node, seconds=0.41)
        return [*seen, ("EvidenceComplete", self.encode(complete))]

    # --- the hang ----------------------------------------------------------------------------

    def _evidence(self, node: int, most: int, together: bool) -> list[tuple[str, bytes]]:
        key = (node, most, together)
        if key not in self._kept:
            ranks = range(node * PER_NODE, (node + 1) * PER_NODE)
            taken = tuple(self._seen(rank, most) for rank in ranks)
            whole = e.EvidenceOfNode(node_rank=node, taken=taken)
            self._kept[key] = (
                [("EvidenceOfNode", self.encode(packed(whole)))]
                if together
                else [("EvidenceTaken", self.encode(each)) for each in taken]
            )
        return self._kept[key]

    def _seen(self, rank: int, most: int) -> e.EvidenceTaken:
        """Evidence of `rank`: the operations that it has finished, and the one that it is in."""
        reached = self._reached(rank)
        last = _HUNG_STEP * 3 + reached
        left_out = _HUNG_STEP * 3 if rank == self.stuck else -1
        records = [
            self._operation(rank, number, number - (number > left_out >= 0), retired=number < last)
            for number in range(max(0, last - most + 1), last + 1)
            if number != left_out
        ]
        waits = Where(file="/home/u/parallel/reduce.py", line=34 + reached, function="reduced")
        here = Frame(file=waits.file, line=waits.line, function=waits.function)
        host, since = f"10.0.{rank // PER_NODE >> 8}.{rank // PER_NODE & 255}", _jitter(rank, 0)
        return e.EvidenceTaken(
            collection=0, rank=rank,
            process=ProcessFacts(
                state="S", wchan="futex_do_wait", cpu_seconds=900 + since / 1e6,
                rss_bytes=(1 << 30) + since * 4096, threads=29,
            ),
            frames=(*_INSIDE, here, *_OUTSIDE), frames_by="py-spy", user_frame=waits,
            collectives=tuple(records),
            files=tuple(
                f"incidents/001/{kind}/rank{rank:05d}.{ending}"
                for kind, ending in (("flight", "json"), ("stacks", "json"), ("logs", "log"))
            ),
            groups=self._groups(rank, most),
            pulse=Pulse(
                rank=rank, step=_HUNG_STEP, phase="step", heartbeat_ns=61_982_263_139_638 + since,
                step_ns=self._began + since, loss=2.5134, tokens=_HUNG_STEP * 4096,
                total_steps=100_000, collectives=last,
            ),
            advanced=False, cpu_delta=0.0, looked_apart=0.43,
            activity=Activity(seconds=0.413, log_quiet_seconds=3.641),
            traffic=self._traffic(rank, host),
            branches=(f"{_TRAIN}:118: if self.accumulated == self.micro_batches:",),
            listens=tuple(f"[{host}]:{20_000 + rank % 8 * 99 + at * 1013}" for at in range(4)),
        )  # fmt: skip

    def _groups(self, rank: int, most: int) -> tuple[GroupCreation, ...]:
        """Its own, made one after the other, and the newest ones of others: all ranks make all."""
        place, (dp, pp, tp) = self._place[rank], self.mesh.sizes
        row = rank // tp * tp
        stage = place["dp"] * pp * tp + place["tp"]
        names = [("", "init_process_group"), ("0", "default_pg")]
        names += [(self._pg(kind, rank), kind) for kind in ("tp", "dp", "pp")]
        ranks = (
            self._all, self._all, tuple(range(row, row + tp)),
            tuple(range(rank % (pp * tp), self.size, pp * tp)),
            tuple(range(stage, stage + pp * tp, tp)),
        )  # fmt: skip
        places = (-1, rank, place["tp"], place["dp"], place["pp"])
        found = [
            GroupCreation(
                pg=pg, pg_desc=desc, ranks=members, member=True, place=at,
                begun_ns=self._began + number * 40_000_000 + _jitter(rank, number),
                ended_ns=self._began + number * 40_000_000 + 2 * _jitter(rank, number) + 10_000,
            )
            for number, ((pg, desc), members, at) in enumerate(
                zip(names, ranks, places, strict=True)
            )
        ]  # fmt: skip
        for number in range(dp * tp - min(most, dp * tp), dp * tp):
            lowest = number // tp * pp * tp + number % tp
            if lowest != stage:
                began_ns = self._began + (300 + number) * 70_000 + _jitter(rank, number) % 50_000
                found.append(
                    GroupCreation(
                        pg=self._pg("pp", lowest), pg_desc="pp", member=False, begun_ns=began_ns,
                        ranks=tuple(range(lowest, lowest + pp * tp, tp)),
                        ended_ns=began_ns + 20_000 + _jitter(rank, number) % 9000,
                    )
                )  # fmt: skip
        return tuple(sorted(found, key=lambda group: group.begun_ns))

    def _traffic(self, rank: int, host: str) -> Traffic:
        """With the other ranks of its node, and with two neighbours in a ring over others."""
        node, first = rank // PER_NODE, rank // PER_NODE * PER_NODE
        beside = tuple(other for other in range(first, first + PER_NODE) if other != rank)
        flows = [
            Flow(
                local=host, remote=host, peers=beside, connections=17,
                total_bytes=1_845_924 + _jitter(rank, 1),
            )
        ]  # fmt: skip
        flows += [
            Flow(
                local=host, remote=f"10.0.{other >> 8}.{other & 255}", connections=2,
                total_bytes=91_845_924 + _jitter(rank, other),
            )
            for other in ((node - 1) % self.nodes, (node + 1) % self.nodes)
        ]  # fmt: skip
        return Traffic(seconds=0.413, flows=tuple(flows))

    def _reached(self, rank: int) -> int:
        """0: the reduction over tp of the step that hangs, 1: over dp, 2: over the world."""
        mine, odd = self._place[rank], self._place[self.stuck]
        if rank // PER_NODE == self.stuck // PER_NODE:
            return 2 if rank == self.stuck else 0
        return 1 if mine["pp"] == odd["pp"] and mine["tp"] != odd["tp"] else 2

    def _begun(self, rank: int) -> int:
        """Of the operations of the step that hangs."""
        return 1 + self._reached(rank) - (rank == self.stuck)

    def _operation(self, rank: int, number: int, record: int, *, retired: bool) -> Collective:
        kind, seq = _PHASES[number % 3], number // 3
        return Collective(
            record_id=record, pg=self._pg(kind, rank), pg_desc=kind, seq_id=seq,
            op="gloo:all_reduce", sizes=((8192,),), dtypes=("Float",), state="scheduled",
            retired=retired,
            created_ns=self._began + number * 80_000_000 + _jitter(rank, number),
        )  # fmt: skip

    def _made(self, rank: int) -> list[e.Event]:
        """The groups of which `rank` is the lowest member."""
        place, (_, pp, tp) = self._place[rank], self.mesh.sizes
        column = range(place["pp"] * tp + place["tp"], self.size, pp * tp)
        first = [("tp", range(rank, rank + tp), place["tp"] == 0)]
        first += [("dp", column, place["dp"] == 0), ("default_pg", range(self.size), rank == 0)]
        stage = range(rank, rank + pp * tp, tp)
        first += [("pp", stage, place["pp"] == 0)]
        return [
            e.GroupCreated(rank=rank, pg=self._pg(kind, rank), pg_desc=kind, ranks=tuple(ranks))
            for kind, ranks, lowest in first
            if lowest
        ]

    def _pg(self, kind: str, rank: int) -> str:
        """As torch numbers them: the same on all members."""
        if kind == "default_pg":
            return "0"
        place, (_, pp, tp) = self._place[rank], self.mesh.sizes
        if kind == "tp":
            return str(1 + rank // tp)
        if kind == "dp":
            return str(1 + self.nodes + place["pp"] * tp + place["tp"])
        return str(1 + self.nodes + pp * tp + place["dp"] * tp + place["tp"])


def _jitter(rank: int, number: int) -> int:
    """Nanoseconds by which ranks are apart: no two do a thing at the same moment."""
    return (rank * 7919 + number * 104_729) % 9_000_000
