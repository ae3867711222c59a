"""Train the reference model: `torchrun --nproc-per-node 8 trainer/train.py --config FILE`.

The same command works under `harness run`, and `python trainer/train.py` trains in one process.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.trainer.config import Config, ConfigError, Layout, Place, layout
from harness.trainer.flags import parse

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from harness.trainer.data import Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One completed optimizer step: global mean loss per token, gradient norm before clipping."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known and checked before any process group exists."""

    config: Config
    place: Place
    sizes: Layout
    device: torch.device
    batches: Batches


class Trainer:
    """The model, optimizer and data of one rank, and the step they make together."""

    def __init__(self, start: Start) -> None:
        """Builds everything and resumes from the newest checkpoint; needs the process group."""
        from harness.trainer import mesh, model, optim, parallelize, pipeline, seeding

        config, sizes, device = start.config, start.sizes, start.device
        self._start, self._config = start, config
        world = mesh.build(device, sizes)
        self._dp_rank = mesh.dp_rank(world)
        seeding.seed_rank(config.run.seed, start.place.rank)
        span = pipeline.stage_layers(world.get_local_rank("pp"), sizes.pp, config.model.layers)
        part = model.Transformer(config.model, *span)
        model.initialise(part, config.model, config.run.seed)
        part.to(device)
        parallelize.parallelize(part, world)
        self._parts: list[torch.nn.Module] = [part]
        self._optimizer = optim.adamw(self._parts, config.optim)
        self._forward_backward = pipeline.build(
            part,
            world,
            micro_batches=config.parallel.micro_batches,
            tokens=start.batches.tokens_per_step,
            device=device,
        )
        self._checkpoints = checkpointer(config, world) if config.checkpoint.dir else None
        self._step = self._position = 0
        peak = mesh.peak_flops(device, config.run.peak_tflops)
        self._peak = peak and peak * start.place.world_size
        self._parameters = model.parameter_count(config.model)
        self._say(
            f"{self._parameters:,} parameters, {start.batches.tokens_per_step:,} tokens a step, "
            f"{start.place.world_size} ranks on {device.type}: pp {sizes.pp} x dp {sizes.dp} "
            f"(replicate {sizes.dp_replicate} x shard {sizes.dp_shard}) x tp {sizes.tp}"
        )
        self._resume()

    def _say(self, text: str) -> None:
        if self._start.place.rank == 0:
            print(text, flush=True)

    def _resume(self) -> None:
        if self._checkpoints is None:
            return
        self._step = self._checkpoints.load(model=self._parts, optimizer=self._optimizer)
        if self._checkpoints.loaded is not None:
            self._position = self._checkpoints.values["position"]
            self._say(f"resumed after step {self._step} from {self._checkpoints.loaded}")

    @property
    def _things(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        return {
            "model": self._parts,
            "optimizer": self._optimizer,
            "position": self._position,
            "shape": asdict(self._config.model),
        }

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        done = self._checkpoints.save(self._step, **self._things)
        if done.outcome in ("writing", "saved"):
            self._say(f"checkpoint {done.path}, training stood still for {done.blocked:.2f} s")

    def _one_step(self) -> Step:
        from harness.trainer import optim

        began = time.perf_counter()
        step, position = self._step + 1, self._position
        inputs, targets = self._start.batches.batch(position, self._dp_rank, self._start.sizes.dp)
        share = self._forward_backward(
            inputs.to(self._start.device), targets.to(self._start.device)
        )
        loss, norm = optim.reduce_and_clip(
            self._optimizer, share / self._start.sizes.tp, self._config.optim.clip
        )
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FloatingPointError(
                f"step {step}: loss {loss}, gradient norm {norm}; "
                f"the parameters are still those of step {step - 1}"
            )
        rate = optim.learning_rate(self._config.optim, step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._step, self._position = step, position + self._config.data.global_batch
        speed = self._start.batches.tokens_per_step / (time.perf_counter() - began)
        return Step(step=step, loss=loss, grad_norm=norm, lr=rate, tokens_per_s=speed)

    def _line(self, done: Step) -> str:
        text = (
            f"step {done.step}/{self._config.optim.steps} loss {done.loss:.4f} lr {done.lr:.2e} "
            f"grad_norm {done.grad_norm:.3f} tok/s {done.tokens_per_s:.0f}"
        )
        if self._peak:
            # 6 FLOPs per parameter and token: PaLM, arXiv:2204.02311, without its attention term.
            text += f" mfu {6 * self._parameters * done.tokens_per_s / self._peak:.3f}"
        return text

    def run(self) -> list[Step]:
        """Take the steps that are left; returns what they gave, the same on every rank."""
        history = []
        every, steps = self._config.checkpoint.every, self._config.optim.steps
        if self._step >= steps:
            self._say(f"nothing to do: step {self._step} of {steps} is done")
        with harness.phase("step"):
            while self._step < steps:
                done = self._one_step()
                self._say(self._line(done))
                history.append(done)
                harness.progress(
                    done.step,
                    loss=done.loss,
                    tokens=self._position * self._config.model.seq_len,
                    total_steps=steps,
                )
                if self._checkpoints is not None:
                    self._checkpoints.remember(done.step, **self._things)
                stopping = self._checkpoints is not None and harness.should_stop(done.step)
                if done.step == steps or stopping or (every and done.step % every == 0):
                    self._save()
                if stopping:
                    self._say(f"asked to stop: leaving after step {done.step}")
                    break
        if self._checkpoints is not None:
            self._checkpoints.wait()
        return history


def checkpointer(config: Config, world: DeviceMesh | None = None) -> harness.Checkpointer:
    """The checkpoints of this training."""
    chosen = config.checkpoint
    return harness.Checkpointer(
        chosen.dir,
        keep=chosen.keep,
        memory_every=chosen.memory_every,
        sync=chosen.sync,
        mesh=world,
    )


def check_folder(config: Config) -> None:
    """Make the folder of checkpoints; refuse what loading or saving would trip over.

    Raises ConfigError.
    """
    if not config.checkpoint.dir:
        return
    root = Path(config.checkpoint.dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--checkpoint-dir {root}: {error.strerror}") from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(f"--checkpoint-dir {root}: not writable")
    before = next((f for f in checkpointer(config).present() if f.manifest is not None), None)
    if before is None or before.manifest is None:
        return
    shape = before.manifest.values.get("shape", {})
    for name, value in asdict(config.model).items():
        if shape.get(name) != value:
            raise ConfigError(
                f"--checkpoint-dir {root}: step {before.step} was saved with {name} "
                f"{shape.get(name)}, this run has {value}; use that or another folder"
            )


def preflight(config: Config, place: Place) -> Start:
    """Everything that can be refused before a process group exists (ConfigError)."""
    sizes = layout(config, place.world_size)
    from harness.trainer import data, mesh

    batches = data.Batches(
        data.corpus(config.data.path),
        seq_len=config.model.seq_len,
        global_batch=config.data.global_batch,
        seed=config.run.seed,
    )
    check_folder(config)
    device = mesh.choose_device(config.run.device, place)
    return Start(config=config, place=place, sizes=sizes, device=device, batches=batches)


def train(config: Config, place: Place) -> list[Step]:
    """Train to the configured step; returns the steps taken by this call.

    Raises ConfigError before any process group exists. When a step fails the group is left
    alone: taking it down would wait for ranks that may be gone.
    """
    with harness.phase("init"):
        start = preflight(config, place)
        import torch.distributed as dist

        from harness.trainer import mesh

        mesh.prepare(
            start.device, threads=config.run.threads, deterministic=config.run.deterministic
        )
        mesh.join(start.device, place)
        trainer = Trainer(start)
    history = trainer.run()
    with harness.phase("teardown"):
        # The model must be gone before the group: torch deadlocks when the last reference to a
        # group is dropped from C++ while Gloo's worker thread waits for the GIL.
        del trainer
        dist.destroy_process_group()
    return history


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 trained, 2 wrong configuration (one line on stderr, from one rank)."""
    rank = 0
    try:
        place = Place.from_env()
        rank = place.rank
        config = parse(sys.argv[1:] if argv is None else argv, quiet=rank != 0)
        train(config, place)
    except ConfigError as error:
        if rank == 0:
            print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # Ctrl-C ends a rank at once and without a traceback; checkpoints are complete or do not count.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
