"""A large run made of records as agents write them: for bench/tui.py and scripts/screenshots.py."""

from collections.abc import Callable, Generator
from dataclasses import replace

from harness import codec
from harness import events as e
from harness.agent.arrivals import most_entries, slower
from harness.policy import Policy
from harness.sightings import Pulse, RankArrivals
from harness.topology import Mesh, NodeRanks

HZ = 4
"""Reports of a node in a second; of thousands, each reports less often."""
REPORT_SECONDS = 2.0
"""Between two reports of arrivals in a small world."""
PER_NODE = 8
MESHES = {64: (4, 2, 8), 1024: (32, 4, 8), 16384: (256, 8, 8)}
START_NS = 1_790_000_000_000_000_000


def world(size: int) -> Generator[list[e.Record], float, None]:
    """First the records of a start; then, for each share that is sent, those of a tick."""
    mesh = Mesh(names=("dp", "pp", "tp"), sizes=MESHES[size])
    nodes = [
        NodeRanks(node_rank=at, host=f"host-{at}", first_rank=at * PER_NODE, size=PER_NODE)
        for at in range(size // PER_NODE)
    ]
    now_ns = START_NS
    seqs: dict[str, int] = {}

    def record(event: e.Event, source: str = "controller", attempt: int = 0) -> e.Record:
        seqs[source] = seqs.get(source, -1) + 1
        mono_ns = now_ns - START_NS + 1_000_000_000
        stamp = e.Stamp(
            run="bench", attempt=attempt, source=source, seq=seqs[source],
            wall_ns=now_ns, mono_ns=mono_ns,
        )  # fmt: skip
        return e.Record(stamp=stamp, event=event)

    first = _start(record, nodes, mesh)
    # As often, and as much at a time, as agents do in a world of that size.
    pause = round(Policy().reports_apart(len(nodes)) * HZ)
    every = int(REPORT_SECONDS * HZ * slower(size))
    each = most_entries(size)
    steps = [1] * size
    phases = ["step"] * size
    changed = yield first
    turn = 0
    while True:
        turn += 1
        now_ns += 1_000_000_000 // HZ
        records = []
        for node in nodes:
            pulses = []
            due = (turn + node.node_rank) % pause == 0
            for rank in node.ranks:
                if not due:
                    continue
                if changed and (rank * 7919 + turn * 104729) % 1000 < changed * 1000:
                    steps[rank] = turn + 1
                    # A cell shows the phase, not the step: so that it really is another one.
                    phases[rank] = "checkpoint" if phases[rank] == "step" else "step"
                pulses.append(
                    Pulse(
                        rank=rank, step=steps[rank], phase=phases[rank],
                        heartbeat_ns=now_ns - START_NS, step_ns=now_ns,
                        loss=5.0 / (1 + turn / 50), tokens=turn * 4096, total_steps=400,
                        collectives=turn,
                    )
                )  # fmt: skip
            if due:
                read = e.PulsesRead(node_rank=node.node_rank, pulses=tuple(pulses))
                records.append(record(read, f"agent:{node.node_rank}"))
            if (turn + node.node_rank) % every == 0:
                news = _arrivals(node, turn // every * each, each, now_ns)
                records.append(record(news, f"agent:{node.node_rank}"))
        changed = yield records


_ANY = {
    name: 1_234_567_890_123_456_000 + at
    for at, name in enumerate((b"step", b"tokens", b"seq", b"wall", b"mono", b"calls"))
}


def long_run(size: int, seconds: int) -> Generator[bytes, None, None]:
    """Lines of a journal: a start, and then every rank makes a step a second, for so long.

    An hour of a thousand ranks is two million lines, so they are filled in, not encoded."""
    run = world(size)
    lines = [codec.encode(record) for record in next(run)]
    yield b"\n".join([*lines, b""])
    made = [record for _ in range(4 * HZ * int(slower(size))) for record in run.send(0.0)]
    reports = {r.event.node_rank: r for r in made if isinstance(r.event, e.PulsesRead)}
    arrivals = {r.event.node_rank: r for r in made if isinstance(r.event, e.ArrivalsRead)}
    forms = [_form(reports[node]) for node in sorted(reports)]
    entered = [codec.encode(arrivals[node]) for node in sorted(arrivals)]
    pause = round(Policy().reports_apart(len(forms)) * HZ)
    every = int(REPORT_SECONDS * HZ * slower(size))
    for turn in range(1, seconds * HZ + 1):
        mono_ns = turn * 1_000_000_000 // HZ
        lines = []
        for node, form in enumerate(forms):
            if (turn + node) % pause == 0:
                step = (turn + node % HZ) // HZ
                values = {
                    b"step": step, b"tokens": step * 4096, b"seq": 10 + turn, b"calls": turn,
                    b"mono": mono_ns + 1_000_000_000, b"wall": START_NS + mono_ns,
                }  # fmt: skip
                lines.append(form % values)
            if (turn + node) % every == 0:
                lines.append(entered[node])
        yield b"\n".join([*lines, b""])


def _form(record: e.Record) -> bytes:
    """A report of pulses with gaps for what changes from one to the next."""
    event = record.event
    assert isinstance(event, e.PulsesRead)
    pulses = tuple(
        replace(
            pulse, step=_ANY[b"step"], tokens=_ANY[b"tokens"], collectives=_ANY[b"calls"],
            heartbeat_ns=_ANY[b"mono"], step_ns=_ANY[b"wall"],
        )
        for pulse in event.pulses
    )  # fmt: skip
    stamp = replace(record.stamp, seq=_ANY[b"seq"], wall_ns=_ANY[b"wall"], mono_ns=_ANY[b"mono"])
    line = codec.encode(replace(record, stamp=stamp, event=replace(event, pulses=pulses)))
    line = line.replace(b"%", b"%%")
    for name, value in _ANY.items():
        line = line.replace(b"%d" % value, b"%(" + name + b")d")
    return line


def _start(record: Callable[..., e.Record], nodes: list[NodeRanks], mesh: Mesh) -> list[e.Record]:
    """The records of a run up to its first step."""
    first = [
        record(
            e.RunStarted(
                run="swift-otter-12", command=("train.py",), nnodes=len(nodes), policy=Policy(),
                chaos_allowed=False, harness_version="0",
            ),
            attempt=-1,
        )
    ]  # fmt: skip
    for node in nodes:
        joined = e.AgentJoined(
            node_rank=node.node_rank, host=node.host, pid=1, local_world_size=PER_NODE
        )
        first.append(record(joined, f"agent:{node.node_rank}", -1))
    first.append(
        record(
            e.AttemptStarted(
                attempt=0, world_size=PER_NODE * len(nodes), nodes=tuple(nodes), why="first"
            )
        )
    )
    for node in nodes:
        for local, rank in enumerate(node.ranks):
            source = f"agent:{node.node_rank}"
            started = e.WorkerStarted(
                rank=rank, local_rank=local, node_rank=node.node_rank, pid=2, launched_by="zygote"
            )
            declared = e.MeshDeclared(
                rank=rank, names=mesh.names, sizes=mesh.sizes,
                coordinates=tuple(mesh.coordinates(rank).values()),
            )  # fmt: skip
            first += [record(started, source), record(declared, source)]
    for node in nodes:  # the innermost axis is as long as a node is large
        made = e.GroupCreated(
            rank=node.first_rank, pg=str(node.node_rank + 1), pg_desc="mesh_tp",
            ranks=tuple(node.ranks),
        )  # fmt: skip
        first.append(record(made, f"agent:{node.node_rank}"))
    return first


def _arrivals(node: NodeRanks, first: int, count: int, now_ns: int) -> e.ArrivalsRead:
    """A node's ranks came to `count` collectives of their group, one after the other."""
    seqs = tuple(range(first, first + count))
    ranks = tuple(
        RankArrivals(
            rank=rank,
            records=seqs,
            groups=(0,) * count,
            seqs=seqs,
            entered_us=tuple(1000 * at + rank % PER_NODE for at in range(count)),
        )
        for rank in node.ranks
    )
    return e.ArrivalsRead(
        node_rank=node.node_rank,
        base_ns=now_ns,
        groups=(str(node.node_rank + 1),),
        ops=("all_reduce",),
        ranks=ranks,
    )
