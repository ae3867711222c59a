"""Ranks that train each for itself and are made one now and then, and those that stay apart."""

from types import SimpleNamespace

import pytest

from harness.worker.digests import layouts
from tests.unit.test_replicas import WORLD, Ranks, part

PARAMETERS, GRADIENTS = 1, 2
SECOND = 1_000_000_000


def trained(
    steps: int, *, own_since: int, averaged_every: int = 0, world: tuple[int, ...] = (0, 1, 2, 3)
) -> Ranks:
    """Looks after each step at what DDP declares: from step `own_since` on, each rank's own."""
    ranks = Ranks(part(clock=0), part(part=GRADIENTS, site="gradients", clock=0))
    for step in range(1, steps + 1):
        for own, count, number in (
            (step > own_since, 2 * step, PARAMETERS),
            (step >= own_since, step, GRADIENTS),
            (step >= own_since, 2 * step + 1, PARAMETERS),
        ):
            apart = own and not (
                number == PARAMETERS and averaged_every and count // 2 % averaged_every == 0
            )
            ranks.look(count, {r: count + 1000 * r * apart for r in world}, number=number)
    return ranks


def waited(ranks: Ranks, seconds: float) -> list[tuple[str, tuple[int, ...]]]:
    """What is said when so much has passed since the last look."""
    for _ in range(2):
        ranks.attempt.surveyed_ns = ranks.at_ns + int(seconds * SECOND)
        ranks.differ(40, odd=0)
    return [(verdict, who) for verdict, who, _ in ranks.said()]


def test_parameters_that_are_alike_again_explain_that_they_and_their_gradients_were_not() -> None:
    ranks = trained(23, own_since=10, averaged_every=5)
    assert waited(ranks, 3600) == []
    assert ranks.attempt.replicas.suspicions == []


def test_ranks_that_stay_apart_are_told_after_a_while() -> None:
    ranks = trained(14, own_since=10)
    assert waited(ranks, 30) == []
    assert waited(ranks, 90) == [("replica_divergence", tuple(range(WORLD)))]


def test_at_the_end_of_the_script_it_is_told_at_once() -> None:
    ranks = trained(14, own_since=10)
    ranks.attempt.ranks[0] = SimpleNamespace(phase="teardown")
    assert waited(ranks, 5) == [("replica_divergence", tuple(range(WORLD)))]


def test_one_rank_of_four_is_not_waited_for() -> None:
    ranks = Ranks(part())
    ranks.alike(range(3, 20, 2))
    for count in (21, 23):
        ranks.look(count, {r: count + 1000 * (r == 2) for r in range(WORLD)})
    ranks.differ(1, odd=2)
    assert [(verdict, who) for verdict, who, _ in ranks.said()] == [
        ("silent_data_corruption", (2,))
    ]


class PostLocalSGDState(SimpleNamespace):
    """What DDP's hook of that name is registered with."""


def noop_hook() -> None: ...


@pytest.mark.parametrize(
    ("hooks", "members"),
    [
        ([], (0, 1, 2, 3)),
        ([(print, None)], (0, 1, 2, 3)),
        ([(print, PostLocalSGDState(subgroup=(0, 1), post_local_gradient_allreduce=True))], (0, 1)),
        ([(print, PostLocalSGDState(subgroup=None, post_local_gradient_allreduce=True))], ()),
        ([(print, PostLocalSGDState(subgroup=(0, 1), post_local_gradient_allreduce=False))], ()),
        ([(noop_hook, None)], ()),
    ],
)
def test_over_which_ranks_a_hook_of_ddp_averages(monkeypatch, hooks, members) -> None:
    monkeypatch.setattr(layouts, "ranks_of", lambda group: group)
    model = SimpleNamespace(process_group=(0, 1, 2, 3), _comm_hooks=hooks)
    assert layouts._averaging(model) == members
