"""What ranks run with: compared, and told by a rank without secrets."""

import sys
from dataclasses import replace

import pytest

from harness import events as e
from harness.codec import decode, encode
from harness.doctor import ranks
from harness.setups import Setup, SetupsRead, differences, replicas
from harness.topology import runs_of
from harness.worker import setup as telling
from tests.replay.world import World

SAME = Setup(
    python="CPython 3.11.7",
    arguments=("train.py", "--lr", "3"),
    environment={"NCCL_DEBUG": "WARN", "HOME": "#1234"},
    packages={"torch": "2.13.0"},
    code={"/x/train.py": "aa", "/x/data.py": "bb"},
    parameters=100,
    tensors=4,
)


def named(setups: dict[int, Setup]) -> list[tuple[str, str]]:
    return [(found.part, found.name) for found in differences(setups)]


def test_equal_ranks_do_not_differ() -> None:
    assert differences(dict.fromkeys(range(8), SAME)) == []
    assert differences({0: SAME}) == []


def test_each_part_is_compared_and_the_common_value_comes_first() -> None:
    odd = replace(
        SAME,
        python="CPython 3.12.1",
        arguments=("train.py", "--lr", "4"),
        environment={"NCCL_DEBUG": "INFO"},
        packages={"torch": "2.12.0", "wandb": "0.1"},
        code={"/x/train.py": "cc"},
    )
    setups = {0: SAME, 1: SAME, 2: odd}
    assert named(setups) == [
        ("python", ""),
        ("arguments", ""),
        ("environment", "HOME"),
        ("environment", "NCCL_DEBUG"),
        ("packages", "torch"),
        ("code", "/x/train.py"),
    ]
    home = differences(setups)[2]
    assert home.values == (("#1234", (0, 1)), (None, (2,)))


def test_replicas_are_alike_on_the_axes_that_cut_the_model() -> None:
    places = {rank: {"dp": rank // 2, "pp": rank % 2} for rank in range(4)}
    assert replicas(range(4), places) == [(0, 2), (1, 3)]
    assert replicas(range(4), {}) == [(0, 1, 2, 3)]


def world(*setups: Setup) -> World:
    world = World(nproc=len(setups)).start()
    told = tuple(replace(each, ranks=runs_of([rank])) for rank, each in enumerate(setups))
    world.say(SetupsRead(node_rank=0, setups=told), 0)
    return world


def levels(world: World) -> dict[str, str]:
    return {check.name: check.level for check in ranks.side_by_side(world.state)}


def test_the_doctor_names_what_ranks_do_not_have_alike() -> None:
    assert set(levels(world(SAME, SAME)).values()) == {"ok"}
    odd = replace(SAME, code={"/x/train.py": "cc"}, parameters=90)
    told = world(SAME, SAME, odd)
    assert levels(told)["code"] == levels(told)["parameters"] == "warn"
    says = {check.name: check.says for check in ranks.side_by_side(told.state)}
    assert says["code"] == "/x/train.py is cc on rank 2, aa on ranks 0-1"
    assert says["parameters"] == "90 on rank 2, 100 on ranks 0-1"


def test_stages_of_a_pipeline_may_differ_in_size() -> None:
    told = world(SAME, replace(SAME, parameters=90))
    for rank in range(2):
        mesh = e.MeshDeclared(rank=rank, names=("dp", "pp"), sizes=(1, 2), coordinates=(0, rank))
        told.say(mesh, 0)
    assert levels(told)["parameters"] == "ok"


def test_a_run_that_told_nothing_is_passed_over() -> None:
    assert levels(World(nproc=2).start()) == {"ranks": "skip"}


def test_the_event_survives_the_journal() -> None:
    record = world(SAME).records[-1]
    assert isinstance(record.event, SetupsRead)
    assert decode(encode(record)) == record


def test_values_that_may_be_secret_are_told_as_digests() -> None:
    assert telling.shown("NCCL_DEBUG", "INFO") == "INFO"
    secret = telling.shown("WANDB_API_KEY", "abcdef")
    assert secret.startswith("#")
    assert "abcdef" not in secret
    assert secret != telling.shown("WANDB_API_KEY", "abcdeg")


def test_the_largest_optimizer_counts() -> None:
    class Parameter:
        def __init__(self, count: int) -> None:
            self.count = count

        def numel(self) -> int:
            return self.count

    class Optimizer:
        def __init__(self, *counts: int) -> None:
            self.param_groups = [{"params": [Parameter(count) for count in counts]}]

    facts: list[dict[str, object]] = []

    def say(kind: str, **fact: object) -> bool:
        facts.append({"kind": kind, **fact})
        return True

    told = telling.Telling(say, "module", ("train", "--lr", "3"))
    for optimizer in (Optimizer(3, 4), Optimizer(10, 20), Optimizer(1), object()):
        told.saw(optimizer)
    told.tell()
    assert facts[0]["kind"] == "SetupTold"
    assert (facts[0]["parameters"], facts[0]["tensors"]) == (30, 2)
    assert facts[0]["arguments"] == ("-m", "train", "--lr", "3")


def test_a_module_that_is_none_troubles_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def __getattribute__(self, name: str) -> object:
            raise RuntimeError("hands off")

    facts: list[str] = []

    def say(kind: str, **fact: object) -> bool:
        facts.append(kind)
        return True

    monkeypatch.setitem(sys.modules, "odd", Odd())  # type: ignore[arg-type]
    told = telling.Telling(say, "script", ("train.py",))
    told.saw(Odd())
    told.tell()
    assert facts == ["HookFailed"]
