"""Every layout follows one process.

Tolerances (single precision, measured over 5 steps, docs/trainer.md): loss 1e-5 and gradient norm
1e-5, ten times what was seen; layouts differ only in the order of sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.trainer.conftest import Launch

TOLERANCE = 1e-5
TP = ("--tp", "2")
PP = ("--pp", "2", "--micro-batches", "2")


def follow(launch: Launch, ranks: int, *flags: str, same: tuple[str, ...] = ()) -> None:
    """Losses and norms of the layout stay with those of one process, and all ranks agree."""
    one = launch(1, *same)
    many = launch(ranks, *flags, *same)
    assert one.codes == [0], one.err
    assert many.codes == [0] * ranks, many.err
    history = many.steps[0]
    assert one.steps[0] is not None
    assert history is not None
    for reference, step in zip(one.steps[0], history, strict=True):
        assert step["loss"] == pytest.approx(reference["loss"], abs=TOLERANCE)
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], abs=TOLERANCE)
        assert step["lr"] == reference["lr"]
    assert all(
        [(s["loss"], s["grad_norm"]) for s in other]
        == [(s["loss"], s["grad_norm"]) for s in history]
        for other in many.steps
        if other is not None
    )
    assert [line.split()[0] for line in many.out[0].splitlines()[1:]] == ["step"] * len(history)
    assert not any(many.out[1:]), "only one rank speaks"


@pytest.mark.slow
def test_dp2_tp2_pp2_on_8_ranks(launch: Launch) -> None:
    follow(launch, 8, *TP, *PP, same=("--layers", "2", "--steps", "3"))


def test_zero3_with_accumulation(launch: Launch) -> None:
    follow(launch, 2, "--dp-shard", "2", "--micro-batches", "2")


def test_tensor_parallel_with_tied_head(launch: Launch) -> None:
    follow(launch, 2, *TP, same=("--tied", "--layers", "2"))


def test_pipeline(launch: Launch) -> None:
    follow(launch, 2, "--pp", "2", "--micro-batches", "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (4, ()),
        (4, ("--dp-shard", "2")),
        (4, ("--dp-shard", "4", "--micro-batches", "2")),
        (4, ("--tp", "4")),
        (4, ("--pp", "4", "--micro-batches", "4")),
        (4, (*TP, "--dp-shard", "2")),
        (4, (*TP, *PP)),
        (4, PP),
        (8, (*TP, "--dp-shard", "2", "--micro-batches", "2")),
        (8, (*TP, *PP, "--dp-shard", "2")),
        (8, (*PP, "--dp-shard", "2")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_every_layout(launch: Launch, ranks: int, flags: tuple[str, ...]) -> None:
    follow(launch, ranks, *flags)
