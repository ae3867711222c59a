"""What a step tells beyond its loss, in real runs."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

from harness import plan

if TYPE_CHECKING:
    from tests.trainer.conftest import Launch


@pytest.mark.slow
def test_the_breakdown(launch: Launch) -> None:
    done = launch(2, "--pp", "2", "--micro-batches", "4", "--breakdown", "--recompute", "full")
    assert done.codes == [0, 0], done.err
    wanted = r" tok/s \d+ mfu \S+ hfu \S+ bubble 0\.\d\d \(formula 0\.20\) data \d+\.\d% exposed"
    wanted += r" \d+\.\d% states \d+\.\d MiB peak \d+\.\d MiB"
    _, peak, *lines = done.out[0].splitlines()
    assert re.fullmatch(r"mfu of \d+\.\d GFLOP/s, measured here with a large matrix product", peak)
    for line in lines:
        assert re.search(wanted + "$", line), line
    assert done.steps[1] is not None
    for step in done.steps[1]:
        assert 0 < step["bubble"] < 1
        assert 0 < step["exposed"] < 1
        assert 0 <= step["data_wait"] < 1
        assert step["peak_bytes"] > 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "shards"),
    [
        ("--ddp", 1),
        ("", 1),
        ("--dp-shard 2", 2),
        ("--dp-shard 4 --zero 1", 4),
        ("--dp-shard 4 --zero 3", 4),
        ("--cp 2 --dp-shard 2", 4),
    ],
)
def test_states_are_as_large_as_planned(launch: Launch, flags: str, shards: int) -> None:
    done = launch(4, *flags.split(), "--breakdown", "--steps", "1", "--warmup", "0")
    assert done.codes == [0] * 4, done.err
    # The headline says how many parameters there are; all shards of this model are even.
    parameters = int(done.out[0].split()[0].replace(",", ""))
    planned = plan.fsdp2_states(parameters, dp=shards).total
    assert [steps[0]["state_bytes"] for steps in done.steps if steps] == [planned] * 4


@pytest.mark.slow
def test_an_overflow_in_half_precision_is_not_taken(launch: Launch) -> None:
    done = launch(2, "--precision", "fp16", "--loss-scale", "1e12", "--dp-shard", "2")
    assert done.codes == [0, 0], done.err
    first, second = (steps for steps in done.steps if steps is not None)
    assert [s["loss_scale"] for s in first] == [s["loss_scale"] for s in second]
    skipped = [s["skipped"] for s in first]
    assert skipped[0]
    for before, after in itertools.pairwise(first):
        assert after["loss_scale"] == before["loss_scale"] / (2 if before["skipped"] else 1)
        if before["skipped"]:
            assert after["loss"] != before["loss"], "the data go on"
    assert "overflow, not taken" in done.out[0]


@pytest.mark.slow
def test_half_precision_trains(launch: Launch) -> None:
    plain = launch(2, "--dp-shard", "2")
    for precision in ("bf16", "fp16", "fp8"):
        done = launch(2, "--dp-shard", "2", "--precision", precision)
        assert done.codes == [0, 0], done.err
        assert plain.steps[0] is not None
        assert done.steps[0] is not None
        for ours, theirs in zip(done.steps[0], plain.steps[0], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-2)
        assert not any(step["skipped"] for step in done.steps[0])


@pytest.mark.slow
def test_noise_and_experts(launch: Launch) -> None:
    flags = "--experts 4 --capacity 0.5 --micro-batches 2 --noise-every 2 --dp-shard 2 --ep 2"
    done = launch(2, *flags.split())
    assert done.codes == [0, 0], done.err
    lines = done.out[0].splitlines()[1:]
    assert ["noise" in line for line in lines] == [False, True, False, True, False]
    for line in lines:
        assert re.search(r" load [1-4]\.\d\d dropped \d+\.\d%$", line), line
    assert done.steps[0] is not None
    assert all(0 < step["dropped"] < 1 for step in done.steps[0])
