"""What engines are given, and what they tell."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness import config
from harness.cli import group
from harness.errors import UsageError
from harness.launching.kubernetes import Pods, as_yaml, manifests
from harness.slurm import first_host, placed

STEP = {
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
    "SLURM_PROCID": "2",
    "SLURM_JOB_ID": "4711",
}


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("n1", "n1"),
        ("gpu[07-12,15],cpu1", "gpu07"),
        ("rack[1-2]-n[3,5]", "rack1-n3"),
        ("a,b,c", "a"),
        ("n[5]", "n5"),
        ("tux.example.com,b", "tux.example.com"),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@pytest.mark.parametrize("hosts", ["", "n[1-", "[]"])
def test_what_is_no_list_is_refused(hosts: str) -> None:
    with pytest.raises(UsageError, match="is no list of hosts"):
        first_host(hosts)


def resolved(tmp_path: Path, environ: dict[str, str], **line: str) -> dict[str, object]:
    found = config.resolve(line, environ={"HOME": str(tmp_path), **environ}, cwd=tmp_path)
    names = ("nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
    return {name: found.values[name].value for name in names}


def test_a_task_of_srun_knows_its_place(tmp_path: Path) -> None:
    found = resolved(tmp_path, {**STEP, "SLURM_GPUS_ON_NODE": "8"})
    assert found == {
        "nnodes": "4",
        "node_rank": 2,
        "master_addr": "gpu07",
        "master_port": 24711,
        "nproc_per_node": "8",
    }


def test_what_is_said_otherwise_is_stronger(tmp_path: Path) -> None:
    assert resolved(tmp_path, STEP, nproc_per_node="2")["nproc_per_node"] == "2"
    alone = resolved(tmp_path, STEP, standalone="true")
    assert (alone["nnodes"], alone["node_rank"]) == ("1", None)


def test_a_batch_script_alone_and_one_node_are_no_meeting() -> None:
    assert placed({"SLURM_JOB_ID": "1", "SLURM_NNODES": "4", "SLURM_PROCID": "0"}) == {}
    assert placed({**STEP, "SLURM_STEP_NUM_NODES": "1"}) == {}


def test_several_tasks_on_a_node_are_refused() -> None:
    with pytest.raises(UsageError, match="srun starts 32 tasks on 4 nodes"):
        placed({**STEP, "SLURM_STEP_NUM_TASKS": "32"})


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = group.call(["launch", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train it.py").write_text("")
    return "train it.py"


def test_a_batch_script_is_one_for_bash(
    script: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--nodes", "4", "--gpus", "8", "--time", "1-00:00:00", "--sbatch=--qos=high"]
    code, text, _ = call(
        capsys, "slurm", *options, "--", "--max-restarts", "9", script, "--lr", "$HOME;ls"
    )
    assert code == 0
    directives = {line for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {
        "#SBATCH --nodes=4",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH --requeue",
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --qos=high",
    } <= directives
    assert "run --max-restarts 9 'train it.py' --lr '$HOME;ls' &" in text
    (tmp_path / "run.sbatch").write_text(text)
    subprocess.run(["bash", "-n", "run.sbatch"], check=True, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["slurm"], "error[H003]: no script given"),
        (["slurm", "none.py"], "error[H003]: there is no script none.py"),
        (
            ["slurm", "--", "--nnodes", "2", "train it.py"],
            "error[H001]: --nnodes is told",
        ),
        (
            ["slurm", "--", "--max-restart", "2", "x.py"],
            "error[H001]: no such option: --max",
        ),
        (
            ["slurm", "--sbatch=x", "train it.py"],
            "error[H201]: --sbatch: 'x' is no option",
        ),
        (["k8s", "train it.py"], "error[H001]: missing option '--image'"),
        (["k8s", "--image", "i", "--name", "A b", "t.py"], "error[H001]: --name: 'A b' cannot be"),
        (["k8s", "--image", "a b", "t.py"], "error[H001]: --image: 'a b' cannot be"),
        (["k8s", "--image", "i", "--namespace", "N", "t.py"], "error[H001]: --namespace: 'N'"),
        (["k8s", "--image", "i", "--volume", "c:data", "t.py"], "error[H001]: --volume: 'data'"),
        (["slurm", "--time", "9x", "train it.py"], "error[H001]: --time: '9x' cannot be"),
        (["slurm", "--partition", "a\nb", "train it.py"], "error[H001]: --partition: 'a\\nb'"),
    ],
)
def test_wrong_lines_are_answered(
    arguments: list[str], error: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(error)


PODS = Pods(
    command=("train.py", "--lr", "3e-4", 'say "hi": [x]'),
    image="me/train:1",
    name="big",
    namespace="ml",
    nodes=4,
    gpus=8,
    claim="store",
    metrics=9400,
)


@pytest.mark.parametrize("pods", [PODS, Pods(command=("t.py",), image="i")], ids=["big", "one"])
@pytest.mark.parametrize("version", ["1.30", "1.33"])
def test_manifests_are_valid_by_the_published_schemas(pods: Pods, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in manifests(pods):
        validate(document, version, strict=True)


def test_a_jobset_holds_the_same_job_and_knows_its_first_pod() -> None:
    (jobset,) = manifests(replace(PODS, jobset=True))
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    validate = pytest.importorskip("kubernetes_validate").validate
    validate({**job, **replicated["template"]}, "1.33", strict=True)
    pod = replicated["template"]["spec"]["template"]["spec"]
    line = pod["containers"][0]["command"]
    assert line[line.index("--master-addr") + 1] == "big-nodes-0-0.big"
    assert jobset["spec"]["network"]["subdomain"] == "big"
    assert "subdomain" not in pod  # the controller of JobSets sets it


def test_the_pods_find_the_first_one() -> None:
    service, job = manifests(PODS)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert container["command"][6:8] == ["--master-addr", "big-0.big"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    secrets = [each for each in container["env"] if "secretKeyRef" in each["valueFrom"]]
    assert [each["name"] for each in secrets] == ["HARNESS_TOKEN"]


def test_the_yaml_says_the_same() -> None:
    yaml = pytest.importorskip("yaml")
    assert list(yaml.safe_load_all(as_yaml(manifests(PODS)))) == manifests(PODS)


def test_k8s_prints_yaml_and_tells_of_the_secret(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "k8s", "--image", "i", "--nodes", "2", "train.py", "--x")
    assert code == 0
    assert out.startswith("---\n")
    assert '"train.py"' in out
    assert "create secret generic harness-token" in err
    assert "token=" not in json.dumps(out)
