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
from harness.doctor import checks, cores, limits, network, software, storage
from harness.doctor.checks import Check

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
    monkeypatch.setattr("harness.cli.doctor._all", lambda *_: iter([bad]))
    assert call(["doctor"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fail  ports             no port is left"
    assert lines[1].strip() == "help: wait"
    assert lines[2].endswith("1 will do harm")


def test_a_run_that_is_not_there_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "swift-otter-12"]) == 2
    assert capsys.readouterr().err.startswith("error: no run 'swift-otter-12'")
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
        while not journal.exists() or b'"parameters":20' not in journal.read_bytes():
            assert run.poll() is None
            time.sleep(0.05)
        (here / "go").touch()
        assert run.wait(100) == 0
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
