"""A real Slurm of two nodes on this machine: a job is placed, preempted, queued again, and ends.

The nodes are called 127.0.0.1 and 127.0.0.2, so that their names lead to them.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.portholder import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)} here (Debian: slurmctld slurmd slurm-client munge)",
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs of users: it must be root"),
    pytest.mark.timeout(1800),
]

CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket,cred_expire=2
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmdSpoolDir={dir}/spool-%n
StateSaveLocation={dir}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
JobRequeue=1
NodeName=127.0.0.1 NodeAddr=127.0.0.1 NodeHostname=localhost Port={ports[1]} CPUs=1
NodeName=127.0.0.2 NodeAddr=127.0.0.2 NodeHostname=localhost Port={ports[2]} CPUs=1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

SCRIPT = """\
import os, pathlib, time
import torch, torch.distributed as dist
import harness
def tell(name, text):
    pathlib.Path(f"{name}.new").write_text(text)
    os.replace(f"{name}.new", name)
dist.init_process_group("gloo")
rank, saved = dist.get_rank(), pathlib.Path("saved.txt")
start = int(saved.read_text()) if saved.exists() else 0
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(start + 1, start + 6 if start else 1_000_000):
    weight.grad = torch.ones(2)
    dist.all_reduce(weight.grad)
    optimizer.step()
    if rank == 0 and step == 3:
        tell("running", os.environ["SLURM_JOB_ID"])
    if harness.should_stop(step):
        if rank == 0:
            tell("saved.txt", str(step))
        harness.checkpoint_saved(step, str(saved), 0.01)
        dist.barrier()
        break
    time.sleep(0.02)
if rank == 0:
    tell("ended", f"{start} {step} {dist.get_world_size()}")
dist.destroy_process_group()
"""


def wait_for(check: Callable[[], object], what: str, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


class Slurm:
    """Its daemons, and its commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.conf.write_text(CONF.format(dir=folder, ports=[free_port() for _ in range(3)]))
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        paths = ("munge.key", "munge.socket", "munged.pid", "munged.log", "munge.seed")
        files = [f"--{name}={self.folder / path}" for name, path in zip(names, paths, strict=True)]
        self._daemon("munged", "-F", "-f", *files, "--num-threads=1")
        wait_for((self.folder / "munge.socket").exists, "munged")
        (self.folder / "state").mkdir()
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.conf))
        for node in ("127.0.0.1", "127.0.0.2"):
            self._daemon("slurmd", "-D", "-N", node, "-f", str(self.conf))
        wait_for(lambda: self.call("sinfo", "-h", "-o", "%t %D").strip() == "idle 2", "two nodes")

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("ab") as out:
            self._daemons.append(subprocess.Popen(command, stdout=out, stderr=out))

    def call(self, *command: str, where: Path | None = None, given: str = "") -> str:
        environ = {**os.environ, "SLURM_CONF": str(self.conf), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            cwd=where,
            env=environ,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(240)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    # slurmd and munged are picky about who may write above them, and about long names of sockets.
    folder = Path(f"/run/harness-slurm-{os.getpid()}")
    folder.mkdir(mode=0o755)
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
        cluster.call("scancel", "-u", "root")
        wait_for(lambda: not cluster.call("squeue", "-h").strip(), "an empty queue")
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_is_placed_preempted_queued_again_and_ends(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "harness", "launch", "slurm", "--nodes", "2", "train.py"]
    script = slurm.call(*launch, where=tmp_path)
    said = slurm.call("sbatch", "--job-name=t", where=tmp_path, given=script)
    job = said.split()[-1]
    assert said.startswith("Submitted batch job"), said

    out = tmp_path / f"slurm-{job}.out"

    def told() -> str:
        return out.read_text() if out.exists() else ""

    wait_for((tmp_path / "running").exists, "the third step")
    assert (tmp_path / "running").read_text() == job
    # What Slurm does --signal seconds before the time is over.
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    wait_for((tmp_path / "saved.txt").exists, "a checkpoint")
    step = int((tmp_path / "saved.txt").read_text())
    wait_for(lambda: "exit code 84: queued again" in told(), "a job that queues itself again")

    ended = tmp_path / "ended"
    wait_for(lambda: ended.exists() and ended.read_text() == f"{step} {step + 5} 2", "its end")
    wait_for(lambda: not slurm.call("squeue", "-h").strip(), "an empty queue")
    assert told().count("2 nodes, 1 rank on this one") == 2
    assert "succeeded" in told()
