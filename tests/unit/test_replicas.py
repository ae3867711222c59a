"""Digests of simulated ranks: what is concluded, and what never is."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from harness import events as e
from harness.diagnosis import places, replicas
from harness.incidents import Finding
from harness.sightings import DigestPart, DigestRow, Doubt, TensorDigests
from harness.state import AttemptState, digesting
from harness.topology import ranks_of, runs_of

WORLD = 4


def part(**changes: Any) -> DigestPart:
    fields: dict[str, Any] = {
        "part": 1,
        "site": "parameters",
        "how": "ddp",
        "name": "a … z",
        "tensors": 40,
        "ranks": tuple(range(WORLD)),
        "members": tuple(range(WORLD)),
        **changes,
    }
    return DigestPart(**{**fields, "members": runs_of(fields["members"])})


def variable(number: int, **changes: Any) -> DigestPart:
    fields = {"site": "variables", "how": "hand", "tensors": 1, "place": "t.py:9:f", **changes}
    return part(part=number, **fields)


class Ranks:
    """An attempt that is told of digests."""

    def __init__(self, *parts: DigestPart, world: int = WORLD) -> None:
        self.attempt = AttemptState(
            index=0, world_size=world, ranks={}, nodes={}, why="", started_ns=0
        )
        self.at_ns = 0
        self.tell(e.DigestsRead(node_rank=0, rows=(), parts=parts))

    def tell(self, event: e.DigestsRead | e.DigestsTold) -> None:
        digesting.note(self.attempt, ("agent:0", 3), event)

    def look(
        self, count: int, values: Mapping[int, int], *, number: int = 1, ahead: int | None = None
    ) -> None:
        """`values` by rank; rank `ahead` has called one collective more by then."""
        self.at_ns += 400_000_000
        rows = tuple(
            DigestRow(
                part=number, count=count, value=value, ranks=(rank,), step=count // 2,
                at_ns=self.at_ns, progress=count + (rank == ahead),
            )
            for rank, value in values.items()
        )  # fmt: skip
        self.tell(e.DigestsRead(node_rank=0, rows=rows))

    def alike(self, counts: Iterable[int], number: int = 1) -> None:
        for count in counts:
            self.look(count, dict.fromkeys(range(WORLD), count // 2), number=number)

    def differ(self, tensors: int, odd: int) -> None:
        """The answer to the question which tensors of the part are other ones on rank `odd`."""
        for known in replicas.unnamed(self.attempt):
            names = tuple(f"t{at}" for at in range(40))
            same = tuple(range(40))
            other = tuple(at + 100 * (at < tensors) for at in range(40))
            rest = tuple(rank for rank in range(WORLD) if rank != odd)
            told = (
                TensorDigests(ranks=rest, values=same),
                TensorDigests(ranks=(odd,), values=other),
            )
            self.tell(
                e.DigestsTold(
                    node_rank=0, attempt=0, part=known.track.part.part, count=known.at.count,
                    names=names, ranks=told,
                )
            )  # fmt: skip
            known.asked, known.asked_ns = {0}, 1

    def said(self) -> list[tuple[str, tuple[int, ...], str]]:
        return [(f.verdict, f.ranks, f.confidence) for f in self.found()]

    def found(self) -> list[Finding]:
        return replicas.find(self.attempt)


def apart(count: int, odd: int, base: int = 0) -> dict[int, int]:
    return {rank: base + count // 2 + 1000 * (rank == odd) for rank in range(WORLD)}


def test_one_rank_of_four_with_one_other_tensor() -> None:
    ranks = Ranks(part())
    ranks.alike(range(2, 9))
    ranks.look(9, apart(9, 2))
    assert ranks.said() == []
    ranks.look(10, apart(10, 2))
    assert ranks.said() == []  # which tensors differ is not known yet
    ranks.differ(1, odd=2)
    (finding,) = ranks.found()
    assert (finding.verdict, finding.ranks) == ("silent_data_corruption", (2,))
    assert "parameter t0 " in finding.cause
    assert finding.confidence == "likely"  # a program that treats rank 2 otherwise looks like this


def test_gradients_of_a_weight_that_had_changed_at_rest_are_its_consequence() -> None:
    ranks = Ranks(part(), part(part=2, site="gradients", how="dtensor", members=(0, 1)))
    ranks.alike(range(2, 10))
    ranks.alike((4, 6, 8), number=2)
    ranks.look(10, {rank: 4 + 1000 * (rank == 1) for rank in range(WORLD)})
    ranks.look(10, apart(10, 1), number=2)
    ranks.look(11, apart(11, 1))
    ranks.differ(6, odd=1)
    assert ranks.said() == [("silent_data_corruption", (1,), "proven")]


def test_what_was_other_before_gradients_were_is_not_their_consequence() -> None:
    """A bias that is whole over tp by hand is other on rank 3 since the end of step 10; in step 11
    it makes gradients of two others differ over tp."""
    bias = part(how="hand", tensors=1, name="bias", members=(1, 3), clock=0)
    grads = part(part=2, site="gradients", how="dtensor", members=(2, 3), clock=0)
    ranks = Ranks(bias, grads)
    for count in range(2, 25):
        ranks.look(count, {1: count // 2, 3: count // 2 + 1000 * (count > 20)})
        if count % 2 == 0:
            both = {2: count, 3: count + 1000 * (count > 21)}
            ranks.look(count // 2, both, number=2)
    ranks.differ(20, odd=3)
    assert ranks.said() == [("silent_data_corruption", (1, 3), "possible")]


def own(count: int) -> dict[int, int]:
    """Another value on each rank."""
    return {rank: 1000 * rank + count // 2 for rank in range(WORLD)}


@pytest.mark.parametrize(
    ("name", "first", "said"),
    [("head.weight", 2, True), ("experts.0.weight", 2, False), ("head.weight", 3, False)],
)
def test_a_parameter_that_was_left_out_of_the_reduction(name: str, first: int, said: bool) -> None:
    """Alike until the first step, and each rank's own since; not where it is so by its name, or
    where nobody has seen it alike."""
    ranks = Ranks(part(how="left", tensors=1, name=name))
    if first == 2:
        ranks.alike([2])
    for count in range(3, 9):
        ranks.look(count, own(count))
    found = [(f.verdict, f.ranks) for f in ranks.found()]
    assert found == ([("replica_divergence", (0, 1, 2, 3))] if said else [])


def test_many_other_tensors_are_the_programs_doing() -> None:
    ranks = Ranks(part())
    ranks.alike(range(2, 9))
    ranks.look(9, apart(9, 2))
    ranks.look(10, apart(10, 2))
    ranks.differ(40, odd=2)
    assert ranks.said() == [("replica_divergence", (2,), "likely")]


def test_memory_that_changes_between_steps_accuses_itself_of_two() -> None:
    ranks = Ranks(part(members=(0, 1)))
    for count in range(2, 8):
        ranks.look(count, {0: count // 2, 1: count // 2})
    ranks.look(8, {0: 3, 1: 77})  # the digests after step 3 were 3 on both
    ranks.differ(1, odd=1)
    assert ranks.said() == [("silent_data_corruption", (1,), "proven")]


def test_two_that_differ_after_an_update_are_both_named() -> None:
    ranks = Ranks(part(members=(0, 1)))
    for count in range(2, 9):
        ranks.look(count, {0: count // 2, 1: count // 2})
    ranks.look(9, {0: 5, 1: 77})
    ranks.look(10, {0: 5, 1: 77})
    ranks.differ(1, odd=1)
    assert ranks.said() == [("silent_data_corruption", (0, 1), "possible")]


@pytest.mark.parametrize(
    ("found", "ranks", "confidence"),
    [
        ({1: 4}, (1,), "proven"),
        ({1: 4, 0: 4}, (0, 1), "possible"),  # what both find, the program does
        ({1: 2}, (0, 1), "possible"),  # they were alike after that
        ({3: 4}, (0, 1), "possible"),  # of another replica
        ({}, (0, 1), "possible"),
    ],
)
def test_of_two_the_one_that_found_its_state_changed_is_named(
    found: dict[int, int], ranks: tuple[int, ...], confidence: str
) -> None:
    """`found`: after which step, by rank."""
    known = Ranks(part(members=(0, 1)))
    for count in range(2, 9):
        known.look(count, {0: count // 2, 1: count // 2})
    for rank, step in found.items():
        doubt = Doubt(
            check="at rest", subject="optimizer state", step=step, at_ns=1,
            tensors=("exp_avg of a",), differ=1, total=9,
        )  # fmt: skip
        known.attempt.doubts.add(rank, doubt, ("agent:0", 7))
    known.look(9, {0: 5, 1: 77})
    known.look(10, {0: 5, 1: 77})
    known.differ(1, odd=1)
    assert known.said() == [("silent_data_corruption", ranks, confidence)]


def crossing(*groups: tuple[int, ...], counts: dict[int, int] | None = None) -> Ranks:
    """Replicas over several axes of a mesh, of which rank 3 has another gradient since look 6; not
    all at that look if `counts` says otherwise."""
    parts = [
        part(part=at, site="gradients", how="dtensor", axis=f"axis{at}", members=group, clock=0)
        for at, group in enumerate(groups, 1)
    ]
    ranks = Ranks(*parts)
    for count in range(3, 9):
        for number, group in enumerate(groups, 1):
            bad = count == (counts or {}).get(number, 6)
            values = {rank: count + 1000 * (bad and rank == 3) for rank in group}
            ranks.look(count, values, number=number)
    ranks.differ(1, odd=3)
    return ranks


def test_a_rank_that_differs_from_two_groups_that_have_it_alone_in_common() -> None:
    ranks = crossing((1, 3), (2, 3))
    (finding,) = ranks.found()
    assert (finding.verdict, finding.ranks) == ("silent_data_corruption", (3,))
    assert finding.confidence == "likely"
    assert finding.cause.startswith("rank 3 has other bits in the reduced gradient of t0 than")
    assert finding.reason == (
        "at the same look it differs from rank 1 over axis axis1 and from rank 2 over axis axis2;"
        " these groups of replicas have it alone in common"
    )


@pytest.mark.parametrize(
    ("groups", "counts"),
    [
        (((1, 3),), {}),
        (((1, 3), (0, 2)), {2: 99}),  # another group that is whole
        (((1, 3), (2, 3)), {2: 7}),  # not at the same look
    ],
)
def test_groups_that_do_not_cross_name_nobody(
    groups: tuple[tuple[int, ...], ...], counts: dict[int, int]
) -> None:
    assert crossing(*groups, counts=counts).said() == [
        ("silent_data_corruption", (1, 3), "possible")
    ]


def test_a_group_that_crosses_is_waited_for() -> None:
    ranks = crossing((1, 3))
    other = part(part=2, site="gradients", how="dtensor", members=(2, 3), clock=0)
    ranks.tell(e.DigestsRead(node_rank=0, rows=(), parts=(other,)))
    ranks.look(5, {2: 5, 3: 5}, number=2)
    (known,) = ranks.attempt.replicas.suspicions
    ranks.attempt.surveyed_ns = known.at.at_ns + 1_000_000_000
    assert ranks.said() == []
    ranks.look(6, {2: 6, 3: 1006}, number=2)
    ranks.differ(1, odd=3)
    assert ranks.said() == [("silent_data_corruption", (3,), "likely")]


def test_two_that_differ_in_two_groups_of_theirs_are_both_named() -> None:
    ranks = crossing((1, 3), (1, 3))
    assert [ranks_said for _, ranks_said, _ in ranks.said()] == [(1, 3)]


def columns(**changes: Any) -> DigestPart:
    return part(part=9, name="columns of a … z", tensors=1, marks=("columns",), **changes)


def test_columns_show_what_rows_do_not() -> None:
    ranks = Ranks(part(), columns())
    for count in (4, 5, 9, 12, 13):
        ranks.alike([count])
        ranks.look(count, apart(count, 2) if count > 9 else dict.fromkeys(range(4), 1), number=9)
    (finding,) = ranks.found()
    assert (finding.verdict, finding.ranks) == ("silent_data_corruption", (2,))
    assert "parameters (columns of a … z; the sums of rows are equal)" in finding.cause


def test_columns_are_silent_where_rows_tell_and_of_shards() -> None:
    ranks = Ranks(part(), columns())
    for count in (4, 5, 9, 12, 13):
        ranks.look(count, apart(count, 2) if count > 9 else dict.fromkeys(range(4), count))
        ranks.look(count, apart(count, 2) if count > 9 else dict.fromkeys(range(4), 1), number=9)
    assert [known.track.part.part for known in ranks.attempt.replicas.suspicions] == [1]
    ranks = Ranks(part(how="sharded"), columns(how="sharded"))
    for count in (4, 5, 9, 12, 13):
        ranks.look(count, dict.fromkeys(range(4), count))
        ranks.look(count, apart(count, 2) if count > 9 else dict.fromkeys(range(4), 1), number=9)
    assert ranks.attempt.replicas.suspicions == []


@pytest.mark.parametrize(
    ("words", "blamed", "said"),
    [
        ({0: "right", 1: "wrong"}, (1,), "a third place decides"),
        ({0: "right", 1: "right"}, (0, 1), "the fault was of the moment"),
        ({0: "wrong", 1: "wrong"}, (0, 1), "nothing tells which of them is wrong, so both"),
        ({0: "unknown", 1: "wrong"}, (0, 1), "nothing tells which of them is wrong, so both"),
    ],
)
def test_a_referee_decides_between_two(
    words: dict[int, str], blamed: tuple[int, ...], said: str
) -> None:
    ranks = Ranks(part(members=(0, 1)))
    for count in range(2, 9):
        ranks.look(count, {0: count // 2, 1: count // 2})
    ranks.look(9, {0: 5, 1: 77})
    ranks.look(10, {0: 5, 1: 77})
    ranks.differ(1, odd=1)
    (known,) = ranks.attempt.replicas.suspicions
    assert places.needs_referee(known)
    known.close.judged = words
    (finding,) = ranks.found()
    assert (finding.ranks, finding.confidence) == (
        blamed, "likely" if len(blamed) == 1 else "possible",
    )  # fmt: skip
    assert said in finding.reason


def test_all_ranks_change_their_parameters_between_steps() -> None:
    ranks = Ranks(part())
    ranks.alike(range(2, 8))
    ranks.look(8, dict.fromkeys(range(WORLD), 55))  # weights clipped by hand
    ranks.alike(range(9, 14))
    assert ranks.attempt.replicas.suspicions == []


def test_never_equal() -> None:
    ranks = Ranks(part())
    for count in range(2, 5):
        assert ranks.said() == []
        ranks.look(count, {rank: rank + 10 * count for rank in range(WORLD)})
    ranks.look(5, {rank: rank + 50 for rank in range(WORLD)})
    ranks.differ(40, odd=0)
    assert ranks.said() == [("replica_divergence", (0, 1, 2, 3), "proven")]


def test_of_ranks_that_were_never_equal_it_is_said_which_agree() -> None:
    ranks = Ranks(part())
    for count in range(2, 6):
        ranks.look(count, apart(count, odd=1))
    ranks.differ(3, odd=1)
    (found,) = ranks.found()
    assert found.ranks == (0, 1, 2, 3)
    assert "rank 1 from ranks 0,2-3, which agree" in found.cause


def test_over_a_model_axis() -> None:
    ranks = Ranks(variable(1, site="parameters", how="dtensor", axis="tp", members=(0, 1)))
    for count in range(2, 6):
        ranks.look(count, {0: count, 1: -count})
    assert ranks.said() == [("tp_replicated_param_divergence", (0, 1), "proven")]


def test_what_is_missing_late_or_lost_is_no_difference() -> None:
    ranks = Ranks(part())
    for count in range(2, 200):
        present = range(WORLD) if count % 3 else range(WORLD - 1)
        ranks.look(count, dict.fromkeys(present, count // 2))
    for count in range(4, 100):  # a node that tells again, or too late
        ranks.look(count, {3: 999})
    ranks.alike(range(300, 320))
    assert ranks.attempt.replicas.suspicions == []
    (track,) = ranks.attempt.replicas.tracks.values()
    assert len(track.pending) <= 16


def test_ranks_that_did_not_do_the_same_are_not_compared() -> None:
    ranks = Ranks(part())
    ranks.alike(range(2, 9))
    for count in range(9, 20):
        ranks.look(count, apart(count, 2), ahead=2)
    assert ranks.attempt.replicas.suspicions == []


def test_other_tensors_on_one_rank_are_not_compared() -> None:
    members = tuple(range(WORLD))
    ranks = Ranks(part(ranks=(0, 1, 2)), part(part=2, ranks=(3,), members=members))
    for count in range(2, 40):
        ranks.look(count, dict.fromkeys(range(3), count))
        ranks.look(count, {3: -count}, number=2)
    assert ranks.attempt.replicas.suspicions == []


def test_a_wrong_gradient_is_seen_in_one_look() -> None:
    ranks = Ranks(part(site="gradients"))
    ranks.alike(range(2, 9))
    ranks.look(9, apart(9, 1))
    ranks.differ(1, odd=1)
    assert ranks.said() == [("silent_data_corruption", (1,), "likely")]


# --- what nobody declares ------------------------------------------------------------------------


def test_a_variable_is_learnt_before_it_is_missed() -> None:
    """Equal and changing over four looks: then it counts; equal and constant does not."""
    for moving in (True, False):
        ranks = Ranks(variable(1, name="w", shape=(64,), marks=("mixed", "kept")))
        for count in range(1, 8):
            ranks.look(count, dict.fromkeys(range(WORLD), count if moving else 5))
        for count in range(8, 11):
            ranks.look(count, {r: count + 100 * (r == 2) for r in range(WORLD)})
        assert bool(ranks.attempt.replicas.suspicions) == moving


def test_alike_again_means_nothing() -> None:
    ranks = Ranks(variable(1, name="net.weight", shape=(8, 32), marks=("mixed", "kept", "leaf")))
    for count in range(1, 60):
        alike = count % 4 == 1
        ranks.look(count, {r: count + (0 if alike else r) for r in range(WORLD)})
    assert ranks.attempt.replicas.suspicions == []


def test_what_the_program_averages_itself_is_not_judged() -> None:
    """Looked at between two averages it may never be alike, or be alike by the chance of when."""
    for marks in (("mixed", "kept"), ("mixed", "kept", "averaged")):
        never, at_first = (
            Ranks(variable(1, name="net.bias", shape=(8,), marks=marks)) for _ in range(2)
        )
        for count in range(1, 20):
            never.look(count, {rank: 10 * count + rank for rank in range(WORLD)})
            apart_by = 0 if count < 8 else 1
            at_first.look(count, {rank: 10 * count + apart_by * rank for rank in range(WORLD)})
        for ranks in (never, at_first):
            assert bool(ranks.attempt.replicas.suspicions) == ("averaged" not in marks)


def test_parameters_without_a_name_are_one_tensor_when_their_gradients_are() -> None:
    """Two optimizers may count tensors of their own (ZeRO by hand): their sums are never alike."""
    name = "#0 [16, 16]"
    for same in (True, False):
        ranks = Ranks(
            part(part=1, how="hand", name=name, tensors=1, clock=0),
            part(part=2, how="hand", name=name, tensors=1, clock=0, site="gradients"),
        )
        for count in range(1, 12):
            summed = {rank: count if same else 100 * count + rank for rank in range(WORLD)}
            ranks.look(count, summed, number=2)
            ranks.look(count, {rank: 10 * count + rank for rank in range(WORLD)})
        assert [known.kind for known in ranks.attempt.replicas.suspicions] == ["apart"] * same


def test_shards_that_are_nothing_but_nan_or_zeros_are_no_replicas() -> None:
    for spoilt in (True, False):
        ranks = Ranks(part(how="sharded", axis="shard"))
        for count in range(1, 12):
            same = dict.fromkeys(range(WORLD), 5 if spoilt else count)
            ranks.look(count, same if count > 6 else {r: 100 * count + r for r in range(WORLD)})
        assert [known.kind for known in ranks.attempt.replicas.suspicions] == ["alike"] * (
            not spoilt
        )


def test_shards_with_a_whole_tensor_that_went_apart() -> None:
    """Rank 2 d + t: data-parallel pairs (0, 2) and (1, 3), each of which sums its gradients."""
    pairs = [dict(members=(t, t + 2), ranks=(t, t + 2)) for t in (0, 1)]
    names = [("ln", (16,), ("ones",)), ("shard", (16, 8), ("mixed",)), ("bias", (8,), ("zeros",))]
    parts = [
        variable(at, name=name, shape=shape, marks=marks, **pair)
        for at, (name, shape, marks) in enumerate(names)
        for pair in pairs
    ]
    ranks = Ranks(*parts)
    for count in range(1, 8):
        by_tp = {rank: count + 50 * (rank % 2) for rank in range(WORLD)}
        ranks.look(count, dict.fromkeys(range(WORLD), 1) if count == 1 else by_tp, number=0)
        ranks.look(count, by_tp, number=1)
        ranks.look(count, dict.fromkeys(range(WORLD), 1) if count == 1 else by_tp, number=2)
    assert ranks.said() == [("tp_replicated_param_divergence", (0, 1, 2, 3), "likely")]
    assert [known.track.part.name for known in ranks.attempt.replicas.suspicions] == ["ln"]


def test_groups_are_told_as_runs() -> None:
    for ranks in ((), (3,), (0, 1, 2), (1, 9, 17, 25), (4, 2, 0), (0, 1, 5, 9, 13), (7, 7)):
        assert ranks_of(runs_of(ranks)) == ranks
    assert runs_of(range(3, 16384, 8)) == ((3, 8, 2048),)


def test_a_thousand_ranks_cost_what_each_costs() -> None:
    world = 2048
    ranks = Ranks(part(members=tuple(range(world)), ranks=tuple(range(world))), world=world)
    for count in range(2, 40):
        for node in range(0, world, 8):
            row = DigestRow(
                part=1, count=count, value=count // 2, ranks=tuple(range(node, node + 8)),
                step=count // 2, at_ns=count, progress=count,
            )  # fmt: skip
            ranks.tell(e.DigestsRead(node_rank=node // 8, rows=(row,)))
    (track,) = ranks.attempt.replicas.tracks.values()
    assert (track.looks, len(track.pending), ranks.attempt.replicas.suspicions) == (38, 0, [])
    assert ranks.attempt.replicas.verified_step(range(world)) == 19
