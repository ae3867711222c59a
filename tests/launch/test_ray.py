"""`harness launch ray` on a real cluster of Ray: several nodes, each a raylet of its own, here."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import group

PATIENCE = 600.0
ROOT = Path(__file__).parents[2]
_HEAD = {"num_cpus": 0, "include_dashboard": False}
TRAIN = """\
import os, time
import harness
folder = os.environ["FOLDER"]
name = os.environ["RANK"] + "." + os.environ["TORCHELASTIC_RESTART_COUNT"]
open(os.path.join(folder, name), "w").write(str(os.getppid()))
step = 0
while not os.path.exists(os.path.join(folder, "go")):
    step += 1
    time.sleep(0.05)
    harness.progress(step)
    harness.checkpoint_saved(step, "ck", 0.0)
print("rank", name, "of", os.environ["WORLD_SIZE"], "is done")
"""


class RayCluster:
    """A head without room, and nodes with one CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(initialize_head=True, head_node_args=_HEAD)
        self.address = str(self._cluster.address)
        self._nodes: list[Any] = []

    def add(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=1))

    def lose_node_of(self, pid: int) -> None:
        """The node on which process `pid` runs vanishes, as if its machine had died."""
        above = parents(pid)
        node = next(n for n in self._nodes if raylet(n) in above)
        self._nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


def raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def parents(pid: int) -> list[int]:
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed here")
    try:
        made = RayCluster()
    except Exception as error:  # Ray's own; it gives its processes 30 s to come up
        if "timed out during startup" not in str(error):
            raise
        pytest.skip("this machine is too busy for Ray to start")
    yield made
    made.end()


@pytest.fixture
def start(tmp_path: Path, cluster: RayCluster) -> Iterator[Any]:
    begun: list[subprocess.Popen[str]] = []

    def launch(*words: str) -> "subprocess.Popen[str]":
        (tmp_path / "train.py").write_text(TRAIN)
        words = ("launch", "ray", "--address", cluster.address, *words, "train.py")
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "HARNESS_RUN_NAME": "t"}
        begun.append(
            subprocess.Popen(
                [sys.executable, "-m", "harness", *words],
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return begun[-1]

    yield launch
    for process in begun:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until_there(driver: "subprocess.Popen[str]", *paths: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not all(path.exists() and path.read_text() for path in paths):
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline, f"waited for {[p.name for p in paths]}"
        time.sleep(0.1)


def report(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "report", "t", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # of Ray's own
def test_ray_replaces_a_lost_node_and_the_run_goes_on(
    cluster: RayCluster, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    for _ in range(2):
        cluster.add()
    driver = start("--nodes", "2", "--", "--no-zygote", "--nproc-per-node", "1")
    until_there(driver, tmp_path / "0.0", tmp_path / "1.0")
    cluster.lose_node_of(int((tmp_path / "1.0").read_text()))
    cluster.add()
    until_there(driver, tmp_path / "0.1", tmp_path / "1.1")
    (tmp_path / "go").touch()
    said, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, said
    assert "node 1 was lost; Ray places another one" in said
    assert "rank 1.1 of 2 is done" in said
    told = report(tmp_path)
    assert (told["outcome"], len(told["attempts"])) == ("succeeded", 2)
    assert [i["class"] for i in told["incidents"]] == ["node_lost"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
def test_an_interrupt_stops_the_run_in_good_order(
    cluster: RayCluster, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    cluster.add()
    driver = start("--", "--no-zygote", "--nproc-per-node", "1")
    until_there(driver, tmp_path / "0.0")
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130, said
    assert report(tmp_path)["outcome"] == "stopped"


def test_without_ray_it_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert group.call(["launch", "ray", "--nodes", "2", "train.py"]) == 2
    assert "Ray is not installed here" in capsys.readouterr().err
    assert group.call(["launch", "ray", "--", "--nnodes", "2", "train.py"]) == 2
    assert "--nnodes is told by the engine" in capsys.readouterr().err
