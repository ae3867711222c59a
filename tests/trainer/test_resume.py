"""A run that loses a rank and is started again ends bit-equal to one that does not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.trainer import compare

if TYPE_CHECKING:
    from tests.trainer.conftest import Launch


def exact(steps: list[dict[str, Any]] | None) -> list[tuple[int, float, float]]:
    assert steps is not None
    return [(s["step"], s["loss"], s["grad_norm"]) for s in steps]


def kill_and_resume(launch: Launch, tmp_path: Path, ranks: int, *flags: str) -> None:
    def run(name: str, kill: tuple[int, int] | None = None) -> Any:
        folder = ("--checkpoint-dir", str(tmp_path / name), "--checkpoint-every", "2")
        folder += ("--checkpoint-sync",) if kill else ()
        return launch(ranks, *flags, *folder, kill=kill)

    undisturbed = run("a")
    assert undisturbed.codes == [0] * ranks, undisturbed.err
    killed = run("b", kill=(1, 3))
    assert killed.codes[1] == -signal.SIGKILL
    assert 0 not in killed.codes
    assert "step 3/5" in killed.out[0]
    resumed = run("b")
    assert resumed.codes == [0] * ranks, resumed.err
    assert f"resumed after step 2 from {tmp_path / 'b' / 'step-000002'}" in resumed.out[0]
    for before, after in zip(undisturbed.steps, resumed.steps, strict=True):
        assert exact(after) == exact(before)[2:]
    assert compare.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0


@pytest.mark.slow
def test_4_ranks_pp_and_zero3(launch: Launch, tmp_path: Path) -> None:
    kill_and_resume(launch, tmp_path, 4, "--pp", "2", "--micro-batches", "2", "--dp-shard", "2")


@pytest.mark.slow
def test_2_ranks_tp(launch: Launch, tmp_path: Path) -> None:
    kill_and_resume(launch, tmp_path, 2, "--tp", "2", "--layers", "1")


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["1", "2"])
def test_8_ranks_3d(launch: Launch, tmp_path: Path, shard: str) -> None:
    flags = ("--tp", "2", "--pp", "2", "--micro-batches", "2", "--dp-shard", shard)
    kill_and_resume(launch, tmp_path, 8, *flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (2, "--pp 2 --micro-batches 4 --schedule interleaved"),
        (2, "--pp 2 --micro-batches 4 --schedule zbv"),
        (2, "--cp 2"),
        (2, "--experts 4 --dp-shard 2 --ep 2 --balance bias"),
        (4, "--dp-shard 2 --zero 2 --micro-batches 2 --optimizer lamb"),
        (2, "--precision fp8 --dp-shard 2"),
        (2, "--precision fp16 --loss-scale 1e9 --tp 2"),
        (2, "--noise-every 1 --micro-batches 2 --optimizer lars"),
    ],
    ids=str,
)
def test_every_technique(launch: Launch, tmp_path: Path, ranks: int, flags: str) -> None:
    kill_and_resume(launch, tmp_path, ranks, *flags.split())


@pytest.mark.slow
def test_one_curve_over_four_meshes(launch: Launch, tmp_path: Path) -> None:
    """pp2 dp2 tp2, then dp4, then tp2, then one process."""
    folder = ("--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-every", "1")
    folder += ("--checkpoint-sync",)
    whole = exact(launch(1).steps[0])
    taken: list[tuple[int, float, float]] = []
    for ranks, flags, until in (
        (8, "--tp 2 --pp 2 --micro-batches 2 --dp-shard 2", 2),
        (4, "--dp-shard 4", 3),
        (2, "--tp 2", 4),
        (1, "", 0),
    ):
        kill = (ranks - 1, until) if until else None
        done = launch(ranks, *folder, *flags.split(), kill=kill)
        lines = [line.split() for line in done.out[0].splitlines() if line.startswith("step ")]
        taken += [(int(w[1].split("/")[0]), float(w[3]), float(w[7])) for w in lines]
    seen = {step: (loss, norm) for step, loss, norm in taken}
    assert sorted(seen) == [step for step, _, _ in whole]
    for step, loss, norm in whole:
        assert seen[step] == (pytest.approx(loss, abs=2e-4), pytest.approx(norm, abs=2e-3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "ranks", "mesh"),
    [
        ("", 4, "--tp 2 --dp-shard 2 --ep 4"),
        # Three ranks share each expert, which cannot be cut by rows.
        ("--d-model 48 --ffn 64 --global-batch 12", 6, "--dp-shard 6 --ep 2"),
    ],
)
def test_experts_move_to_another_mesh(
    launch: Launch, tmp_path: Path, shape: str, ranks: int, mesh: str
) -> None:
    same = ("--experts", "4", "--shared-expert", *shape.split())
    folder = (*same, "--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-every", "2")
    folder += ("--checkpoint-sync",)
    whole = exact(launch(1, *same).steps[0])
    launch(ranks, *folder, *mesh.split(), kill=(3, 3))
    rest = launch(2, *folder, "--cp", "2", "--ep", "2")
    assert rest.codes == [0, 0], rest.err
    for (step, loss, norm), reference in zip(exact(rest.steps[0]), whole[2:], strict=True):
        assert step == reference[0]
        assert loss == pytest.approx(reference[1], abs=1e-5)
        assert norm == pytest.approx(reference[2], abs=1e-5)


@pytest.mark.slow
def test_another_layout_continues_the_same_curve(launch: Launch, tmp_path: Path) -> None:
    folder = ("--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-every", "2")
    folder += ("--checkpoint-sync",)
    whole = exact(launch(1).steps[0])
    first = launch(2, *folder, "--dp-shard", "2", kill=(0, 3))
    assert "checkpoint" in first.out[0]
    second = launch(1, *folder)
    assert second.codes == [0], second.err
    for (step, loss, norm), reference in zip(exact(second.steps[0]), whole[2:], strict=True):
        assert step == reference[0]
        assert loss == pytest.approx(reference[1], abs=1e-5)
        assert norm == pytest.approx(reference[2], abs=1e-5)
    third = launch(2, *folder, "--pp", "2", "--micro-batches", "2")
    assert third.codes == [0, 0], third.err
    assert "nothing to do: step 5 of 5 is done" in third.out[0]
