"""`harness plan`: what a training needs before anything is started."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from harness.cli.numbers import Number, Whole
from harness.cli.reading import SCHEMA, SETTINGS, ReadingCommand, print_json
from harness.errors import LayoutError

if TYPE_CHECKING:
    from harness.plan.models import Model

_COUNT = Whole(least=1)
_AMOUNT = Number(above=0)
_MOST_DRAWN = 20_000
"""Forward passes of a schedule: beyond that a line is wider than any screen."""


@click.command("plan", cls=ReadingCommand, context_settings=SETTINGS)
@click.argument("model", required=False)
@click.option("--gpus", type=_COUNT, metavar="N", default=8, show_default=True, help="GPUs in all.")
@click.option(
    "--gpus-per-node", type=_COUNT, metavar="N", default=8, show_default=True, help="Of one node."
)
@click.option(
    "--gpu", metavar="NAME", default="H100", show_default=True, help="A100, H100, H200 or B200."
)
@click.option("--gpu-memory", type=_AMOUNT, metavar="GB", help="Of one GPU, instead of its own.")
@click.option("--peak-tflops", type=_AMOUNT, metavar="X", help="Of one GPU, instead of its own.")
@click.option(
    "--seq-len",
    type=_COUNT,
    metavar="N",
    default=4096,
    show_default=True,
    help="Tokens of a sequence.",
)
@click.option(
    "--batch", type=_COUNT, metavar="N", help="Sequences in a step.  [default: about 4M tokens]"
)
@click.option("--tp", type=_COUNT, metavar="N", help="Tensor-parallel ranks.  [default: chosen]")
@click.option("--pp", type=_COUNT, metavar="N", help="Pipeline ranks.  [default: chosen]")
@click.option("--cp", type=_COUNT, metavar="N", help="Context-parallel ranks.  [default: chosen]")
@click.option("--ep", type=_COUNT, metavar="N", help="Expert-parallel ranks.  [default: chosen]")
@click.option(
    "--experts",
    type=_COUNT,
    metavar="N",
    help="Give each layer so many, of the size of its feed-forward.",
)
@click.option(
    "--top-k", type=_COUNT, metavar="K", help="Experts that a token goes to.  [default: 2]"
)
@click.option("--shared-expert", is_flag=True, help="One more expert that every token goes to.")
@click.option(
    "--micro-batches",
    type=_COUNT,
    metavar="N",
    default=8,
    show_default=True,
    help="For bubble and schedule.",
)
@click.option(
    "--chunks",
    type=_COUNT,
    metavar="N",
    help="Stages on a pipeline rank.  [default: 1, or 2 where the schedule has several]",
)
@click.option(
    "--schedule",
    is_flag=False,
    flag_value="1f1b",
    metavar="[NAME]",
    help="Draw it: gpipe, 1f1b, interleaved, looped-bfs, zero-bubble, zbv or dualpipe-v.",
)
@click.option(
    "--tokens-per-s", type=_AMOUNT, metavar="X", help="A measured speed: what is its MFU?"
)
@click.option("--critical-batch", type=_AMOUNT, metavar="TOKENS", help="A measured noise scale.")
@click.option(
    "--loss", type=_AMOUNT, metavar="X", help="Nats per token, to guess the critical batch from."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, schema 1.")
def command(
    model: str | None,
    gpus: int,
    gpus_per_node: int,
    gpu: str,
    gpu_memory: float | None,
    peak_tflops: float | None,
    seq_len: int,
    batch: int | None,
    tp: int | None,
    pp: int | None,
    cp: int | None,
    ep: int | None,
    experts: int | None,
    top_k: int | None,
    shared_expert: bool,
    micro_batches: int,
    chunks: int | None,
    schedule: str | None,
    tokens_per_s: float | None,
    critical_batch: float | None,
    loss: float | None,
    as_json: bool,
) -> None:
    """Plan the training of MODEL (7B, 70B, 8x7B, any size such as 3B): memory by ZeRO stage,
    activations, all-reduce, MFU, and a layout with its reasons. Nothing is started.

    \b
      harness plan 70B --gpus 512 --gpus-per-node 8
      harness plan 8B --gpus 64 --seq-len 131072
      harness plan 8B --experts 8 --top-k 2 --gpus 64
      harness plan 7B --gpus 64 --tokens-per-s 0.5e6
      harness plan --schedule zero-bubble --pp 4 --micro-batches 8
    """
    if schedule is not None:
        _draw(schedule, pp or 4, micro_batches, chunks, as_json)
        return
    if model is None:
        raise LayoutError("no model given", help="for example: harness plan 70B --gpus 512")
    if loss and critical_batch:
        raise LayoutError("--loss and --critical-batch say the same", help="give one of them")
    from harness.plan import layout, models, report

    board = models.gpu(gpu)
    if gpu_memory:
        board = replace(board, memory=gpu_memory * 1e9)
    if peak_tflops:
        board = replace(board, flops=peak_tflops * 1e12)
    chosen = _chosen(model, experts, top_k, shared_expert)
    _check_axes(chosen, gpus, {"tp": tp, "pp": pp, "cp": cp}, ep, seq_len)
    job = layout.Job(
        model=chosen,
        gpu=board,
        gpus=gpus,
        per_node=gpus_per_node,
        seq=seq_len,
        batch=batch or report.default_batch(gpus, seq_len),
    )
    plan = report.answer(
        report.Question(
            job=job,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            micro_batches=micro_batches,
            chunks=chunks or 1,
            tokens_per_s=tokens_per_s or 0.0,
            critical=critical_batch or 0.0,
            loss=loss or 0.0,
        )
    )
    if as_json:
        print_json({"schema": SCHEMA} | report.as_json(plan))
        return
    for line in report.as_text(plan):
        click.echo(line)


def _chosen(name: str, experts: int | None, top_k: int | None, shared: bool) -> Model:
    """The model that is asked for. Raises UsageError."""
    from harness.plan import models

    if not experts and (top_k or shared):
        flag = "--top-k" if top_k else "--shared-expert"
        raise LayoutError(f"{flag} goes with --experts", help="say how many experts a layer has")
    known = models.known(name)
    if not experts:
        return known
    return models.with_experts(known, experts=experts, top_k=top_k or 2, shared=int(shared))


def _check_axes(
    model: Model, gpus: int, axes: dict[str, int | None], ep: int | None, seq: int
) -> None:
    """Raises UsageError for axes that were asked for and cannot be."""
    tp, cp = axes["tp"] or 1, axes["cp"] or 1
    if model.heads % tp:
        raise LayoutError(
            f"--tp {tp}: {model.heads} heads cannot be divided by it", help="give a divisor"
        )
    asked = {axis: size for axis, size in axes.items() if size}
    if gpus % math.prod(asked.values()):
        raise LayoutError(
            f"{' and '.join(f'--{axis} {n}' for axis, n in asked.items())}: {gpus} GPUs cannot be "
            f"divided by {math.prod(asked.values())}",
            help="give others, or another number of --gpus",
        )
    if cp > 1 and seq % (2 * cp * tp):
        raise LayoutError(
            f"--cp {cp}: {seq:,} tokens cannot be split into two equal parts for each of cp {cp} x "
            f"tp {tp} ranks",
            help="give another --seq-len",
        )
    if ep and not model.experts:
        raise LayoutError(
            f"--ep {ep}: {model.name} has no experts", help="give --experts, or a model that has"
        )
    if ep and model.experts % ep:
        raise LayoutError(
            f"--ep {ep}: {model.experts} experts cannot be divided by it", help="give a divisor"
        )
    if ep and gpus // (axes["pp"] or 1) % ep:
        raise LayoutError(
            f"--ep {ep}: its ranks come from tp, cp and dp, and {gpus // (axes['pp'] or 1)} GPUs "
            "of a stage cannot be divided by it",
            help="give a divisor",
        )


def _draw(name: str, pp: int, micro_batches: int, chunks: int | None, as_json: bool) -> None:
    """The schedule as text, with the bubble that it has and the formula's."""
    from harness.plan import orders, pipeline

    known = next((each for each in orders.SCHEDULES if each == name), None)
    if known is None:
        raise LayoutError(
            f"no schedule is called {name!r}", help=f"there are {', '.join(orders.SCHEDULES)}"
        )
    parts = chunks or orders.default_chunks(known)
    if pp * micro_batches * parts > _MOST_DRAWN:
        raise LayoutError(
            f"--pp {pp} x --micro-batches {micro_batches} x {parts} stages a rank are too many to "
            "draw",
            help=f"at most {_MOST_DRAWN:,} passes; a smaller one looks alike",
        )
    try:
        line = pipeline.timeline(known, stages=pp, micro_batches=micro_batches, chunks=parts)
    except ValueError as error:
        raise LayoutError(
            str(error), help="choose --pp, --micro-batches and --chunks to fit"
        ) from None
    rows, formula = pipeline.drawn(line), pipeline.bubble(pp, micro_batches, chunks=parts)
    if as_json:
        print_json(
            {
                "schema": SCHEMA,
                "schedule": known,
                "stages": pp,
                "micro_batches": micro_batches,
                "chunks": parts,
                "bubble": line.bubble,
                "formula": formula,
                "length": float(line.length),
                "in_flight": line.in_flight,
                "drawn": rows,
            }
        )
        return
    for row in rows:
        click.echo(row)
    click.echo(
        f"{known}: bubble {line.bubble:.3f}, (p-1)/(vm+p-1) = {formula:.3f}; "
        f"rank 0 holds the activations of {line.in_flight} forward passes at most"
    )
    kinds = {piece.kind for rank in line.ranks for piece in rank}
    legend = "F forward" + (", B backward" if "B" in kinds else "")
    legend += ", I backward for the input, W for the weights" if "I" in kinds else ""
    if parts > 1:
        legend += "; small letters: further stages of the rank"
    click.echo(legend)
