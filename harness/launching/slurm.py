"""The batch script of a run under Slurm."""

import re
import shlex
from dataclasses import dataclass

from harness.errors import ExitCode

_SAVED = int(ExitCode.PREEMPTED)
_LOST = int(ExitCode.NODE_LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What `harness launch slurm` was asked for. `command` is what stands after `harness run`."""

    command: tuple[str, ...]
    harness: tuple[str, ...]
    """How `harness` is called on the nodes."""
    nodes: int = 1
    gpus: int = 0
    """Per node; 0: none are asked for."""
    time: str = ""
    partition: str = ""
    account: str = ""
    name: str = "harness"
    signal: int = 120
    """Seconds before the end of the job's time at which it is preempted."""
    requeues: int = 10
    """How often a job that was preempted, or has lost a node, is queued again."""
    options: tuple[str, ...] = ()
    """Further ones of sbatch, as given."""


def batch_script(batch: Batch) -> str:
    """The whole script, for sbatch."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(batch)),
        "",
        "# The nodes know each other by a secret of this job.",
        "umask 077",
        "HARNESS_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')",
        "export HARNESS_TOKEN",
        f"export HARNESS_PREEMPT_SIGNAL=USR1 HARNESS_PREEMPT_GRACE={max(10, batch.signal - 30)}",
        "",
        "# Slurm would signal every process of a step, ranks and all. So it signals this shell,",
        "# which tells the launcher on the first node, here, and stays until all have saved.",
        "launcher=$(mktemp); export launcher",
        """trap 'kill -USR1 "$(<"$launcher")"' USR1""",
        "trap : TERM",
        "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 bash -c '",
        """  if [[ $SLURM_PROCID == 0 ]]; then echo $$ > "$launcher"; fi; exec "$@"' harness \\""",
        f"  {shlex.join([*batch.harness, 'run', *batch.command])} &",
        "step=$!",
        "while wait $step; code=$?; (( code > 128 )) && kill -0 $step 2>/dev/null; do :; done",
        'rm -f "$launcher"',
        "",
    ]
    if batch.requeues:
        lines += [
            f"# {_SAVED}: preempted, checkpoint saved. {_LOST}: a node was lost.",
            f"if [[ $code == {_SAVED} || $code == {_LOST} ]]"
            f" && (( ${{SLURM_RESTART_COUNT:-0}} < {batch.requeues} )); then",
            '  echo "harness: exit code $code: queued again"',
            '  scontrol requeue "$SLURM_JOB_ID" && exit 0',
            "fi",
        ]
    return "\n".join([*lines, "exit $code", ""])


def _options(batch: Batch) -> list[str]:
    found = [
        f"--job-name={_word(batch.name)}",
        f"--nodes={batch.nodes}",
        "--ntasks-per-node=1",
        "--output=slurm-%j.out",
        "--open-mode=append",
        f"--signal=B:USR1@{batch.signal}",
        "--requeue" if batch.requeues else "--no-requeue",
    ]
    if batch.gpus:
        found.append(f"--gpus-per-node={batch.gpus}")
    for option in ("time", "partition", "account"):
        if getattr(batch, option):
            found.append(f"--{option}={_word(getattr(batch, option))}")
    return [*found, *batch.options]


def _word(text: str) -> str:
    """As sbatch reads a value in a script: it knows quotes, and no shell."""
    return text if re.fullmatch(r"[\w.,:/@%+=-]+", text) else '"' + text.replace('"', "") + '"'
