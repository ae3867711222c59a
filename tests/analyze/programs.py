"""Jobs that get stuck, and those that do not: each with whom the analysis must name."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.analyze.job import Do, Group, Job, Step, Stop

Programs = dict[int, list[Step]]


def world(size: int) -> Group:
    return Group("0", "default_pg", tuple(range(size)))


def megatron(steps: int = 3) -> tuple[Programs, dict[str, Callable[[int], Group]]]:
    """16 ranks as pp 2 x dp 4 x tp 2: every step has tensor-parallel collectives, sends between
    the stages, a data-parallel reduction and one all_reduce of everybody."""
    size, half = 16, 8
    everybody = world(size)
    tensor = {r: Group(str(1 + r // 2), "mesh_tp", (r - r % 2, r - r % 2 + 1)) for r in range(size)}
    data = {
        r: Group(
            str(20 + r // half * 2 + r % 2), "mesh_dp",
            tuple(x for x in range(r // half * half, (r // half + 1) * half) if x % 2 == r % 2),
        )
        for r in range(size)
    }  # fmt: skip
    stage = {
        r: Group(str(40 + r % half), "mesh_pp", (r % half, r % half + half)) for r in range(size)
    }
    programs: Programs = {rank: [] for rank in range(size)}
    for _ in range(steps):
        for rank, program in programs.items():
            first = rank < half
            program.extend([Do("all_reduce", tensor[rank], (64, 8), "BFloat16")] * 2)
            if first:
                program.append(Do("send", stage[rank], (64, 8), "BFloat16", peer=rank + half))
                program.append(Do("recv", stage[rank], (64, 8), "BFloat16", peer=rank + half))
            else:
                program.append(Do("recv", stage[rank], (64, 8), "BFloat16", peer=rank - half))
                program.append(Do("send", stage[rank], (64, 8), "BFloat16", peer=rank - half))
            program.append(Do("_all_gather_base", tensor[rank], (32, 8), "BFloat16"))
            program.append(Do("all_to_all", data[rank], (16 + rank, 8), "BFloat16"))
            program.append(Do("_reduce_scatter_base", data[rank], (1024,)))
            program.append(Do("all_reduce", everybody, (1,)))
    groups = {
        "tp": tensor.__getitem__, "dp": data.__getitem__, "pp": stage.__getitem__,
        "world": lambda _: everybody,
    }  # fmt: skip
    return programs, groups


def simple(size: int = 4, steps: int = 6) -> Programs:
    """Data parallel: two buckets, a barrier at the end of each step."""
    group = world(size)
    one: list[Step] = [
        Do("all_reduce", group, (512, 8)),
        Do("all_reduce", group, (8,)),
        Do("broadcast", group, (3,), "Long"),
    ]
    return {rank: one * steps for rank in range(size)}


def edited(programs: Programs, rank: int, at: int, *instead: Step, drop: int = 1) -> Programs:
    """`programs` with `drop` steps of `rank` replaced."""
    changed = {r: list(steps) for r, steps in programs.items()}
    changed[rank][at : at + drop] = instead
    return changed


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Job]
    verdict: str | None
    ranks: tuple[int, ...] = ()
    says: str = ""
    """Words of `cause`."""
    tied: bool = False


def _stuck(rank: int, at: int, **more: object) -> Callable[[], Job]:
    return lambda: Job(edited(megatron()[0], rank, at, Stop(), drop=0), **more).run()  # type: ignore[arg-type]


def _simple(rank: int, at: int, *instead: Step, drop: int = 1, size: int = 4) -> Callable[[], Job]:
    return lambda: Job(edited(simple(size), rank, at, *instead, drop=drop)).run()


def _replaced(rank: int, at: int, **changes: object) -> Callable[[], Job]:
    from dataclasses import replace

    def make() -> Job:
        programs = simple()
        old = programs[rank][at]
        assert isinstance(old, Do)
        return Job(edited(programs, rank, at, replace(old, **changes))).run()  # type: ignore[arg-type]

    return make


def two_stuck() -> Job:
    programs = edited(megatron()[0], 10, 11, Stop(), drop=0)
    return Job(edited(programs, 15, 12, Stop(), drop=0)).run()


def deadlock() -> Job:
    pair = world(4)
    programs: Programs = {rank: [Do("all_reduce", pair)] * 3 for rank in range(4)}
    programs[0] += [Do("recv", pair, peer=1), Do("send", pair, peer=1)]
    programs[1] += [Do("recv", pair, peer=0), Do("send", pair, peer=0)]
    return Job({rank: [*steps, Do("all_reduce", pair)] for rank, steps in programs.items()}).run()


def pipeline_in_batches(stop: int | None = None) -> Job:
    """Three stages that exchange in batches; one of them stops."""
    line = Group("5", "mesh_pp", (0, 1, 2))
    programs: Programs = {0: [], 1: [], 2: []}
    for step in range(4):
        programs[0] += [Do("send", line, peer=1, batch=step)]
        programs[1] += [Do("recv", line, peer=0, batch=2 * step)]
        programs[1] += [Do("send", line, peer=2, batch=2 * step + 1)]
        programs[2] += [Do("recv", line, peer=1, batch=step)]
    if stop is not None:
        programs[stop].insert(len(programs[stop]) // 2, Stop())
    return Job(programs).run()


def other_order() -> Job:
    """Rank 1 calls its two groups in the other order in the last step; twins show the usual one."""
    programs: Programs = {}
    for rank in range(8):
        a = Group(str(1 + rank // 2), "mesh_a", (rank - rank % 2, rank - rank % 2 + 1))
        b = Group(str(11 + rank // 2), "mesh_b", (rank - rank % 2, rank - rank % 2 + 1))
        programs[rank] = [Do("all_reduce", a, (4,)), Do("all_reduce", b, (9,))] * 4
    programs[1][-2:] = reversed(programs[1][-2:])
    return Job(programs, gloo=True).run()


def order_of_two() -> Job:
    """Nothing shows which of the two left the order."""
    a, b = Group("1", "a", (0, 1)), Group("2", "b", (0, 1))
    return Job(
        {
            0: [Do("all_reduce", a), Do("all_reduce", b)],
            1: [Do("all_reduce", b), Do("all_reduce", a)],
        },
        gloo=True,
    ).run()


def skipped_across_groups() -> Job:
    """Rank 2 skips one all_reduce of the world; all of those are alike."""
    programs: Programs = {}
    everybody = world(4)
    for rank in range(4):
        pair = Group(str(1 + rank // 2), "mesh_tp", (rank - rank % 2, rank - rank % 2 + 1))
        programs[rank] = [Do("all_reduce", pair, (4,)), Do("all_reduce", everybody, (9,))] * 5
    del programs[2][5]
    return Job(programs, gloo=True).run()


def two_members_with_twins() -> Job:
    """In one of four pairs the sizes differ; the other pairs show which is usual."""
    programs: Programs = {}
    for rank in range(8):
        pair = Group(str(1 + rank // 2), "mesh_tp", (rank - rank % 2, rank - rank % 2 + 1))
        programs[rank] = [Do("all_reduce", pair, (4, 4))] * 5
    last = programs[5][-1]
    assert isinstance(last, Do)
    programs[5][-1] = Do("all_reduce", last.group, (4, 5))
    return Job(programs).run()


CASES = [
    Case("stuck in tp", _stuck(5, 8), "rank_stuck_outside_collective", (5,), "has not called"),
    Case("stuck before send", _stuck(3, 10), "rank_stuck_outside_collective", (3,)),
    Case("stuck before world", _stuck(12, 15), "rank_stuck_outside_collective", (12,)),
    Case("two stuck", two_stuck, "rank_stuck_outside_collective", (10, 15)),
    Case("stuck at once", _simple(2, 0, Stop(), drop=99), "stuck_before_first_collective", (2,)),
    Case("broken device", lambda: Job(megatron()[0], broken={9: 11}).run(), "network_stall", (9,)),
    Case(
        "nothing moves", lambda: Job(simple(), stalled=frozenset({("0", 7)})).run(),
        "network_stall", (0, 1, 2, 3), "finishes on none", tied=True,
    ),
    Case("skipped", _simple(2, 6), "collective_mismatch", (2,), "skipped"),
    Case(
        "extra", _simple(1, 6, Do("all_reduce", world(4), (77,)), drop=0), "collective_mismatch",
        (1,), "that the others do not",
    ),
    Case("other op", _replaced(3, 7, op="reduce"), "collective_mismatch", (3,), "another op"),
    Case(
        "other order",
        _simple(2, 6, *reversed(simple()[2][6:8]), drop=2),
        "collective_mismatch", (2,), "other order",
    ),
    Case(
        "uneven data", _simple(3, 15, Do("barrier", world(4)), drop=3), "collective_mismatch", (3,)
    ),
    Case("shape", _replaced(0, 7, size=(9,)), "shape_mismatch", (0,), "another shape"),
    Case("dtype", _replaced(2, 3, dtype="Half"), "shape_mismatch", (2,), "another data type"),
    Case(
        "shape of two", _simple(1, 3, Do("all_reduce", world(2), (9,)), size=2), "shape_mismatch",
        (0, 1), tied=True,
    ),
    Case(
        "shape of two, new", _simple(1, 9, Do("all_reduce", world(2), (9,)), size=2),
        "shape_mismatch", (1,),
    ),
    Case(
        "new operation of two", _simple(1, 9, Do("all_gather", world(2), (5,)), drop=0, size=2),
        "collective_mismatch", (1,),
    ),
    Case("shape with twins", two_members_with_twins, "shape_mismatch", (5,)),
    Case("p2p deadlock", deadlock, "p2p_deadlock", (0, 1), "wait for each other"),
    Case("order over groups", other_order, "collective_mismatch", (1,), "which no other rank does"),
    Case("order of two", order_of_two, "collective_mismatch", (0, 1), tied=True),
    Case("skipped over groups", skipped_across_groups, "collective_mismatch", (2,)),
    Case("batches", lambda: pipeline_in_batches(1), "rank_stuck_outside_collective", (1,)),
    Case("healthy", lambda: Job(megatron()[0]).run(), None),
    Case("healthy in batches", pipeline_in_batches, None),
    Case("healthy gloo", lambda: Job(simple(), gloo=True).run(), None),
]  # fmt: skip
