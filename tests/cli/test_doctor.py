"""`harness doctor` on this machine, and on machines that are not well."""

import json
import os
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from harness.cli.group import call
from harness.doctor import checks, cores, launched, limits, network, software, storage
from harness.doctor.checks import Check
from harness.state import RunState

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads(
    resources.files("harness").joinpath("schemas", "doctor.schema.json").read_text()
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_of_it_keeps_its_schema(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = call(["doctor", "--json", "--nproc-per-node", "2"])
    told = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert code == checks.EXIT_CODES[told["level"]]
    assert (told["run"], told["ranks"]) == (None, 2)
    names = {check["name"] for check in told["checks"]}
    assert names >= {"versions", "ptrace", "shared memory", "disk", "ports", "core speed", "clock"}
    assert [check for check in told["checks"] if "could not be looked at" in check["says"]] == []


def test_plain_lines_say_what_to_do(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Check(name="ports", level="fail", says="no port is left", help="wait")
    monkeypatch.setattr("harness.cli.doctor._all", lambda *_, **__: iter([bad]))
    assert call(["doctor"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fail  ports             no port is left"
    assert lines[1].strip() == "help: wait"
    assert lines[2].endswith("1 will do harm")


def test_a_run_that_is_not_there_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "swift-otter-12"]) == 2
    assert capsys.readouterr().err.startswith("error[H101]: no run 'swift-otter-12'")
    assert call(["doctor", "--nproc-per-node", "many"]) == 2


def test_versions_wanted_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for name, least in software.LEAST.items():
        assert f'"{name}>={least}' in project


def test_an_old_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    there = dict.fromkeys(software.LEAST, "99.0") | {"torch": "2.9.1+cu126", "grpcio": None}
    monkeypatch.setattr(software, "_version", there.get)
    check = software.versions()
    assert check.level == "fail"
    assert check.says == "grpcio is missing; torch 2.9.1+cu126 is older than 2.11"
    assert "'torch>=2.11'" in check.help


def test_room_is_measured_against_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "memory_available", lambda: 1 << 30)
    assert storage.memory(2).level == "ok"
    assert storage.memory(8).level == "warn"
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    few = limits.open_files(8)
    assert (few.level, few.help) == ("warn", "ulimit -n 1024")
    assert cores.count(100_000).level == "warn"


def test_a_disk_that_cannot_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.disk(here / "runs" / "not" / "yet").level in ("ok", "warn")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert storage.disk(here).level == "fail"


def test_a_slow_core_stands_out() -> None:
    took = dict.fromkeys(range(16), 1.0) | {5: 1.6, 9: 1.2}
    assert cores.slow_cores(took) == [5]
    assert cores.slow_cores(dict.fromkeys(range(4), 1.0)) == []


def test_a_port_in_use_is_told_with_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        monkeypatch.setattr(network, "STATIC_PORT", held.getsockname()[1])
        check = network.ports()
    assert check.level == "warn"
    assert f"held by pid {os.getpid()}" in check.says


def test_a_broken_check_stops_no_other() -> None:
    def broken() -> Check:
        raise PermissionError(13, "Permission denied")

    good = Check(name="good", level="ok", says="well")
    found = list(checks.run([("bad", broken), ("good", lambda: good)]))
    assert [check.level for check in found] == ["skip", "ok"]
    assert found[0].says == "could not be looked at: Permission denied"
    assert checks.worst(found) == "ok"


def test_ranks_that_are_not_alike_are_named() -> None:
    told = {
        rank: {
            "rank": rank, "host": f"host{rank // 2}", "met_seconds": 0.5, "files_soft": 4096,
            "block_seconds": 0.001, "clock_seconds": 0.0, "packages": {"numpy": "2.4"},
            "code": {"harness": "aa"},
        }
        for rank in range(4)
    }  # fmt: skip
    assert {check.level for check in launched.told_apart(told, RunState())} == {"ok"}
    told[1] |= {"block_seconds": 0.002, "packages": {"numpy": "2.3"}, "code": {"harness": "bb"}}
    told[3] |= {"clock_seconds": -7.0, "files_soft": 256}
    found = {check.name: check for check in launched.told_apart(told, RunState())}
    assert found["rank speed"].says == "rank 1 (host0) up to 2.0 times slower than most"
    assert found["packages"].says == "numpy is 2.3 on rank 1, 2.4 on ranks 0,2-3"
    assert found["code"].says == "harness is bb on rank 1, aa on ranks 0,2-3"
    assert found["rank clocks"].says == "rank 3 (host1) is 7.0 s behind"
    assert found["rank files"].says.startswith("may have open: 256 on rank 3, 4096 on ranks 0-2")


def test_own_ranks_and_those_of_a_run_are_not_compared(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["doctor", "--ranks", "2", "swift-otter-12"]) == 2
    assert "--ranks starts ranks of its own" in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_of_its_own_are_started_and_compared(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "doctor", "--ranks", "2", "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=240,
    )
    told = json.loads(done.stdout)
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert done.returncode == checks.EXIT_CODES[told["level"]]
    found = {check["name"]: check for check in told["checks"]}
    assert found["ranks"]["says"].startswith("all 2 ran after")
    for name in ("python", "arguments", "environment", "packages", "code", "rank files"):
        assert found[name]["level"] == "ok"
    assert len(found["rank speed"]["facts"]["block_seconds"]) == 2
    assert not list(here.iterdir())


def test_ranks_that_do_not_start_are_told_with_the_reason() -> None:
    said = "harness: run doctor\nerror[H201]: no port is left\nhelp: wait\n"
    check = launched.broken(4, {0: {}}, RunState(), said)
    assert (check.level, check.says) == (
        "fail",
        "1 of 4 ranks started and met: error[H201]: no port is left",
    )


SCRIPT = """\
import importlib, os, sys
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
os.environ["NCCL_ALGO"] = "Ring" if rank == 1 else "Tree"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), f"copy{rank}"))
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4 + rank)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
gone = torch.zeros(1)
while not gone:
    gone.fill_(os.path.exists("go"))
    dist.all_reduce(gone, op=dist.ReduceOp.MIN)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_that_differ_are_found_in_a_real_run(here: Path) -> None:
    (here / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    harness = [sys.executable, "-m", "harness"]
    run = subprocess.Popen(
        [*harness, "run", "--run-name", "odd", "--nproc-per-node", "2", "train.py"],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    journal = here / "runs" / "odd" / "journal.jsonl"
    try:
        said = b""
        while b'"parameters":20' not in said or b'"parameters":25' not in said:
            said = journal.read_bytes() if journal.exists() else b""
            assert run.poll() is None
            time.sleep(0.05)
        (here / "go").touch()
        assert run.wait(240) == 0
    finally:
        run.kill()
        run.wait()
    done = subprocess.run(
        [*harness, "doctor", "odd", "--json"], env=environment, capture_output=True, check=False
    )
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["environment"]["says"] == "NCCL_ALGO is Ring on rank 1, Tree on rank 0"
    assert found["parameters"]["level"] == "warn"
    assert found["code"]["level"] == found["packages"]["level"] == "ok"
