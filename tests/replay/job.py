"""A job of many ranks that run the same program, played without a process: who waits where, and
what their flight records say then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.collectives import Collective, GroupCreation
from harness.incidents import Where
from harness.sightings import Activity, Frame, ProcessFacts
from tests.replay.world import collective

_FILE = "/home/u/train.py"
_C10D = Frame(
    file="/v/site-packages/torch/distributed/distributed_c10d.py", line=9, function="all_reduce"
)
LEFT = "left"


@dataclass(frozen=True)
class Do:
    """One thing in a rank's program: a collective on its group of that role; or, where `role` is
    empty, to be away for ever."""

    role: str
    size: int = 64
    frozen: bool = False
    sticks: bool = False
    """It never finishes, whoever comes."""


@dataclass
class Job:
    """`dp` x `pp` x `tp` ranks, tp innermost; every step reduces over tp, dp and all ranks, which
    stages of a pipeline do differently often. `change` gives a rank's program another turn."""

    dp: int
    pp: int
    tp: int
    steps: int = 6
    change: Callable[[int, list[Do]], list[Do]] = lambda rank, program: program
    done: dict[int, list[tuple[Do, int]]] = field(default_factory=dict)
    """By rank: what it has called, each with its number in the group."""
    now: dict[int, Do] = field(default_factory=dict)
    """By rank: what it stands in."""

    def __post_init__(self) -> None:
        self.size = self.dp * self.pp * self.tp
        self._ranks = {rank: self._members(rank) for rank in range(self.size)}
        self._play()

    # --- the program ---------------------------------------------------------------------------

    def _program(self, rank: int) -> list[Do]:
        stage = rank // self.tp % self.pp
        step = [*[Do("tp")] * (1 + stage), Do("dp", size=32), Do("default_pg", size=1)]
        return step * self.steps

    def _members(self, rank: int) -> dict[str, tuple[int, ...]]:
        first = rank - rank % self.tp
        return {
            "default_pg": tuple(range(self.size)),
            "tp": tuple(range(first, first + self.tp)),
            "dp": tuple(range(rank % (self.pp * self.tp), self.size, self.pp * self.tp)),
        }

    def _play(self) -> None:
        programs = {rank: self.change(rank, self._program(rank)) for rank in range(self.size)}
        at = dict.fromkeys(programs, 0)
        count: dict[tuple[int, str], int] = {}
        called: dict[tuple[tuple[int, ...], str, int], dict[int, Do]] = {}
        self.done = {rank: [] for rank in programs}
        todo = list(programs)
        while todo:
            rank = todo.pop()
            if at[rank] == len(programs[rank]):
                self.now[rank] = Do(LEFT)
                continue
            what = programs[rank][at[rank]]
            self.now[rank] = what
            if not what.role:
                continue
            members = self._ranks[rank][what.role]
            seq = count[rank, what.role] = count.get((rank, what.role), -1) + 1
            self.done[rank].append((what, seq))
            there = called.setdefault((members, what.role, seq), {})
            there[rank] = what
            alike = len(there) == len(members) and len(set(there.values())) == 1
            if alike and not what.sticks:
                for member in members:
                    at[member] += 1
                todo += members

    @property
    def hangs(self) -> bool:
        """Whether it does not come to its end."""
        return any(now.role != LEFT for now in self.now.values())

    # --- what is seen of it ----------------------------------------------------------------------

    def begun(self, rank: int) -> int:
        return len(self.done[rank])

    def evidence(self, rank: int) -> dict[str, Any]:
        """Fields of its EvidenceTaken at a look."""
        now, done = self.now[rank], self.done[rank]
        waits = bool(now.role) and now.role != LEFT
        line = Where(file=_FILE, line=30 if waits else 50, function="train" if waits else "mix")
        user = Frame(file=line.file, line=line.line, function=line.function)
        retired = len(done) - waits
        return {
            "collectives": tuple(
                self._record(rank, number, what, seq, retired=number < retired)
                for number, (what, seq) in enumerate(done)
            ),
            "frames": (_C10D, user) if waits else (user,),
            "user_frame": line,
            "groups": tuple(self._made(rank)),
            "process": ProcessFacts(
                state="T" if now.frozen else "S", wchan="futex", cpu_seconds=1.0,
                rss_bytes=1 << 30, threads=7,
            ),
            "advanced": False, "cpu_delta": 0.0, "looked_apart": 0.4,
            "activity": Activity(seconds=0.3, log_quiet_seconds=1e6),
        }  # fmt: skip

    def _record(self, rank: int, number: int, what: Do, seq: int, *, retired: bool) -> Collective:
        name, sizes = self._name(rank, what.role), ((what.size,),)
        entry = collective(number, sizes=sizes, pg=name, desc=what.role, retired=retired)
        return replace(entry, seq_id=seq)

    def _name(self, rank: int, role: str) -> str:
        return "0" if role == "default_pg" else f"{role}-{self._ranks[rank][role][0]}"

    def _made(self, rank: int) -> Sequence[GroupCreation]:
        return [
            GroupCreation(
                pg=self._name(rank, role), pg_desc=role, ranks=ranks, member=True, begun_ns=1,
                ended_ns=2,
            )
            for role, ranks in self._ranks[rank].items()
        ]  # fmt: skip
