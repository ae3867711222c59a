"""Ranks that compute and meet in collectives, on a virtual clock, as their agents report it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness import events as e
from harness.sightings import RankArrivals, Vitals
from tests.replay.world import SECOND, World

REPORT_SECONDS = 2.0


@dataclass
class Timeline:
    """`groups` are by name; `skews` are seconds by which the clock of a node is ahead."""

    world: World
    groups: dict[str, tuple[int, ...]]
    peers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    skews: dict[int, float] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)
    """Seconds since the start at which each rank is free."""
    entered: dict[int, list[tuple[str, int, float, str]]] = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    reported: float = 0.0

    def __post_init__(self) -> None:
        self.start_ns = self.world.now_ns
        for name, ranks in self.groups.items():
            group = e.GroupCreated(
                rank=ranks[0], pg=name, pg_desc=f"group_{name}", ranks=tuple(ranks)
            )
            self.world.say(group, self.world.node_of(ranks[0]))

    def compute(self, rank: int, seconds: float) -> None:
        self.at[rank] = self.at.get(rank, 0.0) + seconds

    def meet(self, group: str, call: str = "") -> None:
        """All members of `group` enter its next collective and leave when the last has come."""
        ranks = self.groups[group]
        self.seqs[group] = self.seqs.get(group, 0) + 1
        for rank in ranks:
            at = self.at.setdefault(rank, 0.0)
            self.entered.setdefault(rank, []).append((group, self.seqs[group], at, call))
        release = max(self.at[rank] for rank in ranks)
        for rank in ranks:
            self.at[rank] = release + 1e-4

    def report(self, *, last: bool = False) -> None:
        """What is due: reports of all nodes, every two seconds."""
        now = min(self.at.values())
        if not last and now - self.reported < REPORT_SECONDS:
            return
        self.reported = now
        for node in range(self.world.nnodes):
            self.world.now_ns = self.start_ns + int((now + 1e-3) * SECOND)
            skew_ns = int(self.skews.get(node, 0.0) * SECOND)
            self.world.now_ns += skew_ns
            ranks = range(node * self.world.nproc, (node + 1) * self.world.nproc)
            self.world.say(self._event(node, ranks, self.start_ns + skew_ns), node)
            self.world.now_ns -= skew_ns

    def _event(self, node: int, ranks: Sequence[int], base_ns: int) -> e.ArrivalsRead:
        names = tuple(self.groups)
        every = [entry for rank in ranks for entry in self.entered.get(rank, [])]
        calls = tuple(dict.fromkeys(call for *_, call in every if call))
        told: list[RankArrivals] = []
        for rank in ranks:
            entries = self.entered.pop(rank, [])
            first = self.records.get(rank, 0)
            self.records[rank] = first + len(entries)
            told.append(
                RankArrivals(
                    rank=rank,
                    records=tuple(range(first, first + len(entries))),
                    groups=tuple(names.index(group) for group, *_ in entries),
                    seqs=tuple(seq for _, seq, _, _ in entries),
                    entered_us=tuple(int(at * 1e6) for _, _, at, _ in entries),
                    calls=tuple(calls.index(call) for *_, call in entries if call),
                    peers=self.peers.get(rank, ()),
                )
            )
        return e.ArrivalsRead(
            node_rank=node,
            base_ns=base_ns,
            groups=names,
            ops=("all_reduce",) * len(names),
            calls=calls,
            ranks=tuple(told),
        )


def steps(
    world: World, count: int, seconds: Callable[[int, int], float], **more: object
) -> Timeline:
    """`count` steps of computing for `seconds(rank, step)` and one collective of the world."""
    everybody = tuple(range(world.nnodes * world.nproc))
    line = Timeline(world=world, groups={"0": everybody}, **more)  # type: ignore[arg-type]
    for step in range(count):
        for rank in everybody:
            line.compute(rank, seconds(rank, step))
        line.meet("0")
        line.report()
    line.report(last=True)
    return line


def hold(
    world: World,
    seconds: int,
    fds: Callable[[int, int], int],
    memory: Callable[[int, int], int],
    *,
    fd_limit: int = 1024,
    available: int = 64 << 30,
) -> None:
    """`seconds` in which every rank takes ten steps a second and holds files and bytes as told."""
    for second in range(1, seconds + 1):
        world.step(10 * second, seconds=1.0)
        for node in range(world.nnodes):
            ranks = range(node * world.nproc, (node + 1) * world.nproc)
            vitals = tuple(
                Vitals(
                    rank=rank,
                    fds=fds(rank, second),
                    fd_limit=fd_limit,
                    memory_bytes=memory(rank, second),
                    step=10 * second,
                )
                for rank in ranks
            )
            world.say(
                e.VitalsRead(node_rank=node, vitals=vitals, memory_available_bytes=available), node
            )
