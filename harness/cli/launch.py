"""`harness launch slurm|k8s|ray|torchx`: what an engine that places nodes is given for a run."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from harness.cli.completing import complete_files
from harness.cli.numbers import Whole
from harness.cli.reading import SETTINGS
from harness.errors import PlacementError, ScriptError, UsageError
from harness.launching.kubernetes import Pods, as_yaml, manifests
from harness.launching.slurm import Batch, batch_script
from harness.slurm import MEETING

_SLURM_TIME = r"(?i)|(\d+-)?\d+(:\d+){0,2}|infinite|unlimited"
_COUNT: dict[str, Any] = {"show_default": True, "metavar": "N"}
_PASSED_ON = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


@click.group("launch", invoke_without_command=True, context_settings=SETTINGS)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Have Slurm, Kubernetes, Ray or TorchX place the nodes of a run.

    \b
      harness launch slurm --nodes 4 --gpus 8 train.py --lr 3e-4 > run.sbatch
      harness launch k8s --image me/train:1 --nodes 4 --gpus 8 train.py > run.yaml
      harness launch ray --nodes 4 --gpus 8 train.py --lr 3e-4
      torchx run -s kubernetes "$(harness launch torchx)" -j 4x8 --script train.py
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("missing command: slurm, k8s, ray or torchx")


@command.command("slurm", context_settings=_PASSED_ON)
@click.option("--nodes", type=Whole(1), default=1, **_COUNT)
@click.option("--gpus", type=Whole(0), default=0, metavar="N", help="Per node.")
@click.option("--time", default="", metavar="D-HH:MM:SS", help="Longest time of the job.")
@click.option("--partition", default="", metavar="NAME")
@click.option("--account", default="", metavar="NAME")
@click.option("--name", default="harness", show_default=True, help="Name of the job.")
@click.option(
    "--signal",
    type=Whole(15),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="Save and stop so long before the time is over.",
)
@click.option(
    "--requeues",
    type=Whole(0),
    default=10,
    **_COUNT,
    help="How often to queue again what was preempted, or lost a node.",
)
@click.option("--sbatch", "options", multiple=True, metavar="OPTION", help="A further one.")
@click.option("--submit", is_flag=True, help="Hand it to sbatch instead of printing it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def slurm(
    nodes: int,
    gpus: int,
    time: str,
    partition: str,
    account: str,
    name: str,
    signal: int,
    requeues: int,
    options: tuple[str, ...],
    submit: bool,
    command: tuple[str, ...],
) -> int:
    """Print the batch script of a run. Options of harness run go after --.

    \b
      harness launch slurm --nodes 4 --gpus 8 --time 24:00:00 train.py --lr 3e-4
      harness launch slurm --nodes 4 --submit -- --max-restarts 9 train.py
    """
    _check(command, placed=MEETING)
    for option in options:
        if not option.startswith("-") or "\n" in option:
            raise PlacementError(
                f"--sbatch: {option!r} is no option of sbatch", help="as in --sbatch=--qos=high"
            )
    _fits(_SLURM_TIME, "--time", time, "a job's time", "give D-HH:MM:SS, HH:MM:SS or minutes")
    for option, text in (("--name", name), ("--partition", partition), ("--account", account)):
        _fits(r'[^\n"]*', option, text, "a word of a batch script", "leave out quotes")
    script = batch_script(
        Batch(
            command=command,
            harness=(sys.executable, "-m", "harness"),
            nodes=nodes,
            gpus=gpus,
            time=time,
            partition=partition,
            account=account,
            name=name,
            signal=signal,
            requeues=requeues,
            options=options,
        )
    )
    if not submit:
        click.echo(script, nl=False)
        return 0
    try:
        done = subprocess.run(["sbatch"], input=script, text=True, check=False)
    except OSError as error:
        raise PlacementError(
            f"sbatch cannot be started ({error.strerror})", help="leave out --submit"
        ) from None
    if done.returncode:
        raise PlacementError(f"sbatch refused the job (exit code {done.returncode})")
    return 0


@command.command("k8s", context_settings=_PASSED_ON)
@click.option("--image", required=True, help="It holds PyTorch, Harness and the script.")
@click.option("--nodes", type=Whole(1), default=1, help="Pods.", **_COUNT)
@click.option("--gpus", type=Whole(0), default=0, metavar="N", help="Per pod.")
@click.option("--name", default="harness", show_default=True, help="Of the Job and the Service.")
@click.option("--namespace", default="", metavar="NAME")
@click.option(
    "--volume", default="", metavar="CLAIM[:PATH]", help="A claim all pods share, mounted at /data."
)
@click.option(
    "--grace",
    type=Whole(20),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="What a pod gets to save when it has to go.",
)
@click.option(
    "--restarts",
    type=Whole(0),
    default=10,
    help="How often lost nodes are replaced.",
    **_COUNT,
)
@click.option("--metrics-port", type=Whole(1, 65534), metavar="PORT", help="For Prometheus.")
@click.option("--jobset", is_flag=True, help="A JobSet in place of a Job and its Service.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def k8s(
    image: str,
    nodes: int,
    gpus: int,
    name: str,
    namespace: str,
    volume: str,
    grace: int,
    restarts: int,
    metrics_port: int | None,
    jobset: bool,
    command: tuple[str, ...],
) -> int:
    """Print an indexed Job and its Service, or a JobSet. Options of harness run go after --.

    \b
      harness launch k8s --image me/train:1 --nodes 4 --gpus 8 train.py | kubectl apply -f -
      harness launch k8s --image me/train:1 --volume store:/data -- --max-restarts 9 train.py
    """
    placed = (*MEETING, "preempt_grace", "metrics_port", "metrics_addr")
    _check(command, placed=(*placed, *(("nproc_per_node",) if gpus else ())), there=False)
    claim, _, mount = volume.partition(":")
    _fits(r"\S+", "--image", image, "the name of an image", "as in me/train:1")
    letters = "small letters, digits and dashes"
    help = f"at most 50 {letters}, a letter first"
    _fits(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?", "--name", name, "part of a host's name", help)
    _fits(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?)?", "--namespace", namespace, "a namespace", letters)
    _fits(r"[a-z0-9.-]*", "--volume", claim, "the name of a claim", "as in store:/data")
    _fits(r"(/[^:]*)?", "--volume", mount, "an absolute path in the pod", "as in store:/data")
    pods = Pods(
        command=command,
        image=image,
        name=name,
        namespace=namespace,
        nodes=nodes,
        gpus=gpus,
        claim=claim,
        mount=mount or "/data",
        grace=grace,
        restarts=restarts,
        metrics=metrics_port or 0,
        jobset=jobset,
    )
    click.echo(as_yaml(manifests(pods)), nl=False)
    if nodes > 1 or metrics_port:
        where = f" -n {namespace}" if namespace else ""
        click.echo(
            "harness: the pods know each other by a secret, made once with\n"
            f"  kubectl{where} create secret generic {name}-token"
            " --from-literal=token=$(openssl rand -hex 16)",
            err=True,
        )
    return 0


@command.command("ray", context_settings=_PASSED_ON)
@click.option("--address", default="auto", show_default=True, help="Of the cluster.")
@click.option("--nodes", type=Whole(1), default=1, **_COUNT)
@click.option("--gpus", type=Whole(0), default=0, metavar="N", help="Per node.")
@click.option("--cpus", type=Whole(0), default=1, metavar="N", help="Per node.")
@click.option(
    "--restarts",
    type=Whole(0),
    default=10,
    help="How often lost nodes are replaced.",
    **_COUNT,
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_files)
def ray(
    address: str, nodes: int, gpus: int, cpus: int, restarts: int, command: tuple[str, ...]
) -> int:
    """Run on a Ray cluster, to the end. Options of harness run go after --.

    \b
      harness launch ray --nodes 4 --gpus 8 train.py --lr 3e-4
      harness launch ray --nodes 2 -- --nproc-per-node 2 train.py
    """
    from harness.launching.raycluster import Cluster, run_on_ray

    _check(command, placed=(*MEETING, *(("nproc_per_node",) if gpus else ())))
    wanted = Cluster(
        command=command, address=address, nodes=nodes, gpus=gpus, cpus=cpus, restarts=restarts
    )
    return run_on_ray(wanted, lambda text: click.echo(f"harness: {text}", err=True))


@command.command("torchx", context_settings=SETTINGS)
def torchx() -> int:
    """Print where Harness's component for TorchX lies.

    \b
      harness launch torchx
      torchx run -s local_cwd "$(harness launch torchx)" -j 1x2 --script train.py
      torchx run -s slurm "$(harness launch torchx)" -j 4x8 --script train.py -- --lr 3e-4
    """
    spec = find_spec("harness.launching.torchxcomponent")
    assert spec is not None
    click.echo(f"{spec.origin}:run")
    return 0


def _fits(pattern: str, option: str, text: str, what: str, help: str) -> None:
    """Raises UsageError where the engine would refuse `text`, later and elsewhere."""
    if not re.fullmatch(pattern, text):
        raise UsageError(f"{option}: {text!r} cannot be {what}", help=help)


def _check(command: tuple[str, ...], *, placed: tuple[str, ...], there: bool = True) -> None:
    """Raises UsageError where `harness run` would; `placed` is the engine's own business."""
    from harness.cli.run import command as run

    context = run.make_context("run", list(command))
    if context.params["script"] is None:
        raise ScriptError("no script given", help="for example: harness launch slurm train.py")
    for name in placed:
        if context.params.get(name) not in (None, (), False):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is told by the engine", help="leave it out")
    script = context.params["script"]
    plain = not context.params.get("module") and not context.params.get("no_python")
    if there and plain and not Path(script).is_file():
        raise ScriptError(f"there is no script {shlex.quote(script)}", help=f"in {Path.cwd()}")
