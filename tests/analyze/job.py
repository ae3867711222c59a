"""A small model of a distributed job: programs of ranks, run until nothing moves, and the flight
records that PyTorch would have of them.

With NCCL a rank's process runs ahead of its device: it calls all it can, the device finishes them
in order. With Gloo it stands in one call at a time.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

T0 = 1_758_610_505_000_000_000


@dataclass(frozen=True)
class Group:
    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Do:
    """One call. `peer` is the global rank at the other end of a send or receive; `batch` numbers
    the calls that are issued as one."""

    op: str
    group: Group
    size: tuple[int, ...] = (4,)
    dtype: str = "Float"
    peer: int | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Stop:
    """The process does something else here, for ever."""


Step = Do | Stop


@dataclass
class Entry:
    do: Do
    seq: int
    done: bool = False


@dataclass
class Job:
    """`broken` are ranks whose device finishes nothing from their n-th call on."""

    programs: Mapping[int, Sequence[Step]]
    gloo: bool = False
    broken: Mapping[int, int] = field(default_factory=dict)
    stalled: frozenset[tuple[str, int]] = frozenset()
    """Group and sequence number of collectives that finish nowhere."""
    records: dict[int, list[Entry]] = field(default_factory=dict)

    def run(self) -> "Job":
        position = dict.fromkeys(self.programs, 0)
        counts: dict[tuple[int, str], int] = {}
        self.records = {rank: [] for rank in self.programs}
        moved = True
        while moved:
            moved = False
            for rank, program in self.programs.items():
                while position[rank] < len(program):
                    step = program[position[rank]]
                    waits = self.gloo and self._head(rank) is not None
                    if isinstance(step, Stop) or waits:
                        break
                    kind = (rank, f"{step.group.name}{'p2p' if step.peer is not None else ''}")
                    if step.batch is None or not self._continues(rank, step):
                        counts[kind] = counts.get(kind, 0) + 1
                    self.records[rank].append(Entry(step, counts[kind]))
                    position[rank] += 1
                    moved = True
            moved = self._finish() or moved
        return self

    def _continues(self, rank: int, step: Do) -> bool:
        entries = self.records[rank]
        return bool(entries) and entries[-1].do.batch == step.batch

    def _head(self, rank: int) -> Entry | None:
        return next((entry for entry in self.records[rank] if not entry.done), None)

    def _heads(self, rank: int) -> list[Entry]:
        """What the device is at: one call, or all of a batch."""
        head = self._head(rank)
        if head is None:
            return []
        if head.do.batch is None:
            return [head]
        return [e for e in self.records[rank] if not e.done and e.do.batch == head.do.batch]

    def _finish(self) -> bool:
        moved = False
        for rank in self.programs:
            for entry in self._heads(rank):
                parts = self._complete(rank, entry)
                for owner, part in parts:
                    if not self._device_broken(owner, part):
                        part.done = moved = True
        return moved

    def _device_broken(self, rank: int, entry: Entry) -> bool:
        from_call = self.broken.get(rank)
        return from_call is not None and self.records[rank].index(entry) >= from_call

    def _complete(self, rank: int, entry: Entry) -> list[tuple[int, Entry]]:
        """All parts of the operation when it can finish, else none."""
        do = entry.do
        if do.peer is not None:
            for other in self._heads(do.peer):
                opposite = {"send": "recv", "recv": "send"}[do.op]
                if other.do.peer == rank and other.do.op == opposite and not other.done:
                    return [(rank, entry), (do.peer, other)]
            return []
        if (do.group.name, entry.seq) in self.stalled:
            return []
        parts = []
        for member in do.group.ranks:
            found = next(
                (e for e in self.records.get(member, []) if e.do.peer is None
                 and e.do.group == do.group and e.seq == entry.seq), None,
            )  # fmt: skip
            if found is None or not _fit(found.do, do):
                return []
            if not found.done and found not in self._heads(member):
                return []
            if not found.done:
                parts.append((member, found))
        return parts


def _fit(one: Do, other: Do) -> bool:
    sizes = one.op == "all_to_all" or one.size == other.size
    return one.op == other.op and sizes and one.dtype == other.dtype


@dataclass(frozen=True, kw_only=True)
class Form:
    """How dumps are written. `ring` is the size of the buffer, `active` leaves out what is done."""

    version: str = "2.9"
    as_json: bool = False
    ring: int = 2000
    active: bool = False
    frames: bool = True
    status: bool = True
    name: Callable[[int], str] = "_dump_{}".format


def dump(job: Job, rank: int, form: Form) -> dict[str, Any]:
    """The flight record of one rank."""
    made = [_entry(job, rank, at, entry, form) for at, entry in enumerate(job.records[rank])]
    made = _with_markers(job, rank, made)
    for at, entry in enumerate(made):
        entry["record_id"] = at
    made = made[-form.ring :]
    if form.active:
        made = [e for e in made if e["state"] != "completed"]
    groups = {do.group for do in _calls(job, rank)}
    if job.gloo:
        config = {"": {"name": "", "desc": "", "ranks": str(sorted(job.programs))}}
    else:
        config = {
            g.name: {"name": g.name, "desc": g.desc, "ranks": str(list(g.ranks))} for g in groups
        }
    key = "nccl_version" if _minor(form) < 10 else "comm_lib_version"
    value: dict[str, Any] = {
        "version": form.version,
        key: "" if job.gloo else "2.27.3",
        "pg_config": config,
        "pg_status": _status(job, rank) if form.status else {},
    }
    if made or not form.as_json:
        value["entries"] = made
    return value


def _minor(form: Form) -> int:
    return int(form.version.split(".")[1])


def _calls(job: Job, rank: int) -> list[Do]:
    return [step for step in job.programs[rank] if isinstance(step, Do)]


def _local(job: Job, rank: int, group: Group) -> int:
    """The process-local number of a group: grows with its name."""
    names = sorted({do.group.name for do in _calls(job, rank)}, key=int)
    return 2 * names.index(group.name)


def _status(job: Job, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in job.records[rank]:
        told = found.setdefault(
            str(_local(job, rank, entry.do.group)),
            {
                "last_enqueued_collective": -1,
                "last_started_collective": -1,
                "last_completed_collective": -1,
            },
        )
        told["last_enqueued_collective"] = entry.seq
        if entry.done:
            told["last_completed_collective"] = entry.seq
    return found


def _entry(job: Job, rank: int, at: int, entry: Entry, form: Form) -> dict[str, Any]:
    do = entry.do
    p2p = do.peer is not None
    name = do.op
    if p2p:
        assert do.peer is not None
        here, there = do.group.ranks.index(rank), do.group.ranks.index(do.peer)
        name = f"{do.op} {here}{'->' if do.op == 'send' else '<-'}{there}"
    hidden = do.batch is not None  # members of a batch are never marked as done
    done = entry.done and not hidden and not job.gloo
    sizes = [] if do.op == "barrier" else [list(do.size)]
    dtypes = [] if do.op == "barrier" else [do.dtype]
    made: dict[str, Any] = {
        "record_id": at,
        "pg_id": _local(job, rank, do.group),
        "process_group": (do.group.name, do.group.desc),
        "collective_seq_id": 0 if p2p else entry.seq,
        "p2p_seq_id": entry.seq if p2p else 0,
        "op_id": at + 1,
        "profiling_name": f"{'gloo' if job.gloo else 'nccl'}:{name}",
        "time_created_ns": T0 + at * 1_000_000 + rank,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "output_dtypes": dtypes,
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": T0 + at * 1_000_000 if done else None,
        "time_discovered_completed_ns": T0 + at * 1_000_000 + 500 if done else None,
        "retired": entry.done and not hidden,
        "timeout_ms": 600_000,
        "is_p2p": p2p,
    }
    if _minor(form) >= 7:
        made |= {"thread_name": "python3", "thread_id": "23456244340032"}
    if form.frames and not form.as_json:
        made["frames"] = [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/c10d.py",
             "line": 7},
            {"name": "train_step", "filename": "/home/user/train.py", "line": 10 + at},
        ]  # fmt: skip
    return made


def _with_markers(job: Job, rank: int, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the entry that ends each batch and alone tells whether the batch is done."""
    out: list[dict[str, Any]] = []
    entries = job.records[rank]
    for at, (entry, told) in enumerate(zip(entries, made, strict=True)):
        out.append(told)
        batch = entry.do.batch
        if batch is None or (at + 1 < len(entries) and entries[at + 1].do.batch == batch):
            continue
        done = all(e.done for e in entries if e.do.batch == batch)
        out.append(
            told
            | {
                "profiling_name": "nccl:coalesced",
                "input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": [],
                "state": "completed" if done else "scheduled",
                "retired": done,
                "time_discovered_completed_ns": told["time_created_ns"] + 500 if done else None,
            }
        )  # fmt: skip
    return out


def write(job: Job, folder: Path, form: Form | None = None, *, without: Iterable[int] = ()) -> Path:
    """All dumps of `job` into `folder`, except those of `without`."""
    form = form or Form()
    for rank in job.programs:
        if rank in without:
            continue
        value = dump(job, rank, form)
        path = folder / form.name(rank)
        if form.as_json:
            path.write_text(json.dumps(value))
        else:
            path.write_bytes(pickle.dumps(value, protocol=2))
    return folder
