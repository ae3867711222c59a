"""Ranks that wait for somebody who does not exist: their program makes a world of another size than
this run's, gives one number to several ranks, or looks for the store at an address of its own.

Certain at once, for no time can bring who is not there.
"""

from collections.abc import Mapping

from harness.collectives import STORE, GroupCreation
from harness.diagnosis.waits.graph import Op
from harness.diagnosis.waits.record import Call, Group, Waits
from harness.diagnosis.waits.root import Root
from harness.topology import ranks_name

NOBODY = "a world of its own"
"""What the signature of such a verdict says instead of an operation."""


def nobody(waits: Waits) -> Root | None:
    """The ranks whose programs have it wrong, all together: it is one and the same line."""
    met = {
        rank: wait.meeting
        for rank, wait in sorted(waits.ranks.items())
        if wait.meeting is not None and not wait.progressed
    }
    return _strangers(waits, met) or _astray(waits, met) or _doubles(waits, met)


def _strangers(waits: Waits, met: Mapping[int, GroupCreation]) -> Root | None:
    """Ranks beyond the last one."""
    size = waits.world_size
    found = {rank: made for rank, made in met.items() if max(made.ranks, default=-1) >= size}
    if not found:
        return None
    ranks = tuple(found)
    made = found[ranks[0]]
    absent = sorted({rank for made in found.values() for rank in made.ranks if rank >= size})
    if made.ranks == tuple(range(len(made.ranks))):
        what = f"the script makes a world of {len(made.ranks)} ranks"
    else:
        what = f"the script makes a group with {ranks_name(absent)}"
    one = len(absent) == 1
    return _root(
        waits, ranks, tuple(met), made,
        f"{what}, and this run has {size} (WORLD_SIZE={size}): {ranks_name(ranks)}"
        f" wait{'s' if len(ranks) == 1 else ''} for {ranks_name(absent)},"
        f" {'that does' if one else 'which do'} not exist",
    )  # fmt: skip


def _astray(waits: Waits, met: Mapping[int, GroupCreation]) -> Root | None:
    """A store where none is."""
    found = {rank: made for rank, made in met.items() if made.pg_desc == STORE}
    if not found:
        return None
    ranks = tuple(found)
    made = found[ranks[0]]
    look = "looks" if len(ranks) == 1 else "look"
    return _root(
        waits, ranks, tuple(met), made,
        f"{ranks_name(ranks)} {look} for the rendezvous store at {made.pg}, and this run's is at"
        " another port: the script sets MASTER_PORT, or names one in init_method, though its ranks"
        " are told where the store is",
    )  # fmt: skip


def _doubles(waits: Waits, met: Mapping[int, GroupCreation]) -> Root | None:
    """Several ranks that say they are the same one."""
    said: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for rank, made in met.items():
        if made.member and 0 <= made.place < len(made.ranks):
            said.setdefault((made.pg, made.ranks, made.ranks[made.place]), []).append(rank)
    doubled = {key: ranks for key, ranks in said.items() if len(ranks) > 1}
    if not doubled:
        return None
    (_, members, claimed), ranks = max(doubled.items(), key=lambda item: len(item[1]))
    taken = {key[2] for key in said if key[1] == members}
    absent = [rank for rank in members if rank not in taken]
    whom = f": they wait for {ranks_name(absent)}, that nobody says to be" if absent else ""
    return _root(
        waits, tuple(ranks), tuple(met), met[ranks[0]],
        f"{ranks_name(ranks)} all say that they are rank {claimed} (the script gives init_process_"
        f"group a rank, or sets RANK){whom}",
    )  # fmt: skip


def _root(
    waits: Waits, ranks: tuple[int, ...], waiters: tuple[int, ...], made: GroupCreation, cause: str
) -> Root:
    return Root(
        verdict="stuck_before_first_collective",
        ranks=ranks,
        cause=cause,
        confidence="proven",
        onset_ns=made.begun_ns,
        op=Op(
            group=Group(name=made.pg, desc=made.pg_desc, ranks=made.ranks), seq=0,
            call=Call(op=NOBODY), members=made.ranks, onset_ns=made.begun_ns, creation=True,
            waiters=waiters,
        ),
        where=waits.ranks[ranks[0]].doing,
        tied=len(ranks) > 1,
    )  # fmt: skip
