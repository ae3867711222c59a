"""Train the reference model: `torchrun --nproc-per-node 8 trainer/train.py --config FILE`.

The same command works under `harness run`, and `python trainer/train.py` trains in one process.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import harness
from harness.trainer.compose import layout
from harness.trainer.config import Config, ConfigError, Layout, Place
from harness.trainer.flags import parse
from harness.trainer.saving import check_folder, checkpointer, extra, restore, shape
from harness.trainer.telling import Step, headline, line

if TYPE_CHECKING:
    import torch

    from harness.trainer.data import Batches


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
        from harness.trainer import assemble, model, optim, seeding, waits

        config, sizes, device = start.config, start.sizes, start.device
        self._start, self._config = start, config
        seeding.seed_rank(config.run.seed, start.place.rank)
        made = assemble.assemble(config, sizes, device, start.batches.tokens_per_step)
        self._made, self._optimizer = made, made.optimizer
        self._dp_rank = made.meshes.dp_rank()
        self._checkpoints = (
            checkpointer(config, made.meshes.dense) if config.checkpoint.dir else None
        )
        self._noise, self._waits = optim.Noise(), waits.Waits()
        self._step = self._position = 0
        self._active = model.active_count(config.model, config.experts)
        self._peak: float | None = None
        if start.place.rank == 0:
            self._introduce()
        self._resume()

    def _introduce(self) -> None:
        from harness.trainer import model, peaks, precision

        config, device = self._config, self._start.device
        text = headline(
            parameters=model.parameter_count(config.model, config.experts),
            tokens=self._start.batches.tokens_per_step,
            device=device.type,
            sizes=self._start.sizes,
        )
        if config.memory.precision == "fp8":
            # DTensors, which tensor parallel computes on, have no product in 8 bit.
            native = precision.hardware(device) and self._start.sizes.tp == 1
            text += ", fp8 " + ("in hardware" if native else "emulated")
        self._say(text)
        peak = peaks.peak(device, self._start.place, config)
        self._peak = peak.flops
        if peak.says:
            self._say(peak.says)

    def _say(self, text: str) -> None:
        if self._start.place.rank == 0:
            print(text, flush=True)

    def _resume(self) -> None:
        if self._checkpoints is None:
            return
        self._step = self._checkpoints.load(model=self._made.modules, optimizer=self._optimizer)
        if self._checkpoints.loaded is not None:
            values = self._checkpoints.values
            self._position = values["position"]
            restore(values.get("extra", {}), self._made, self._noise)
            self._say(f"resumed after step {self._step} from {self._checkpoints.loaded}")

    @property
    def _things(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        things = {
            "model": self._made.modules,
            "optimizer": self._optimizer,
            "position": self._position,
            "shape": shape(self._config),
        }
        more = extra(self._made, self._noise)
        return things | ({"extra": more} if more else {})

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        done = self._checkpoints.save(self._step, **self._things)
        if done.outcome in ("writing", "saved"):
            self._say(f"checkpoint {done.path}, training stood still for {done.blocked:.2f} s")

    def _one_step(self) -> Step:
        began = time.perf_counter()
        with self._waits.counting() if self._config.run.breakdown else contextlib.nullcontext():
            loss, norm, facts = self._taken(self._step + 1)
        return self._told(loss, norm, facts, time.perf_counter() - began)

    def _taken(self, step: int) -> tuple[float, float, dict[str, Any]]:
        """Take a step; its loss, its gradient norm, and what else there is to tell of it."""
        from harness.trainer import moe, optim

        made, config, device = self._made, self._config, self._start.device
        began = time.perf_counter()
        inputs, targets = self._start.batches.batch(
            self._position, self._dp_rank, self._start.sizes.dp
        )
        inputs, targets = made.here(inputs).to(device), made.here(targets).to(device)
        facts: dict[str, Any] = {"data_wait": time.perf_counter() - began}
        small: list[float] = []

        def probe() -> None:
            small.append(optim.squared_norm(self._optimizer, device))

        every = config.optim.noise_every
        probed = bool(every) and step % every == 0
        scale = made.scale.value
        facts |= {"loss_scale": scale} if made.scale.dynamic else {}
        began = time.perf_counter()
        share = made.runner(inputs, targets, probe if probed else None)
        facts["run"] = time.perf_counter() - began
        loss, norm = optim.reduce_and_clip(
            self._optimizer, share / self._start.sizes.tp, config.optim.clip, scale=scale
        )
        if small:
            facts["noise_tokens"] = self._noisy(small[0] / scale**2, norm)
        finite = math.isfinite(loss) and math.isfinite(norm)
        made.scale.after(finite)
        if not finite and (not made.scale.dynamic or scale == 1):
            raise FloatingPointError(
                f"step {step}: loss {loss}, gradient norm {norm}; "
                f"the parameters are still those of step {step - 1}"
            )
        if finite:
            rate = optim.learning_rate(config.optim, step, batch=config.data.global_batch)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad()
        if config.experts.experts:
            facts["expert_load"], facts["dropped"] = moe.settle(
                made.modules, config.model.layers, config.experts.experts, device
            )
        if made.float8 is not None:
            made.float8.settle(device)
        self._step, self._position = step, self._position + config.data.global_batch
        return loss, norm, facts | {"skipped": not finite}

    def _noisy(self, small: float, norm: float) -> float:
        """The gradient noise scale in tokens, with this step's two norms in it. Gradients are parts
        of a mean over the whole batch, so that of one micro-batch is as often too small."""
        tokens, parts = self._start.batches.tokens_per_step, self._config.parallel.micro_batches
        return self._noise.note(tokens / parts, small * parts**2, tokens, norm**2)

    def _told(self, loss: float, norm: float, facts: dict[str, Any], seconds: float) -> Step:
        from harness.trainer import mesh, optim

        ran, wait = facts.pop("run"), facts.pop("data_wait")
        if self._config.run.breakdown:
            facts |= {
                "data_wait": wait / seconds,
                "exposed": self._waits.seconds / seconds,
                "state_bytes": optim.state_bytes(self._optimizer),
                "peak_bytes": mesh.peak_bytes(self._start.device),
            }
            if self._start.sizes.pp > 1:
                facts["bubble"] = 1 - self._made.runner.busy / ran
        return Step(
            step=self._step,
            loss=loss,
            grad_norm=norm,
            lr=self._optimizer.param_groups[0]["lr"],
            tokens_per_s=self._start.batches.tokens_per_step / seconds,
            **facts,
        )

    def run(self) -> list[Step]:
        """Take the steps that are left; returns what they gave, the same on every rank."""
        history = []
        every, steps = self._config.checkpoint.every, self._config.optim.steps
        if self._step >= steps:
            self._say(f"nothing to do: step {self._step} of {steps} is done")
        with harness.phase("step"):
            while self._step < steps:
                done = self._one_step()
                self._say(line(done, self._config, self._active, self._peak))
                history.append(done)
                harness.progress(
                    done.step,
                    loss=done.loss,
                    tokens=self._position * self._config.model.seq_len,
                    total_steps=steps,
                )
                if self._checkpoints is not None:
                    self._checkpoints.remember(done.step, **self._things)
                kept = self._checkpoints is not None
                stopping = kept and harness.should_stop(done.step)
                asked = kept and harness.should_save(done.step)
                due = every and done.step % every == 0
                if done.step == steps or stopping or asked or due:
                    self._save()
                if stopping:
                    self._say(f"asked to stop: leaving after step {done.step}")
                    break
        if self._checkpoints is not None:
            self._checkpoints.wait()
        return history


def preflight(config: Config, place: Place) -> Start:
    """Everything that can be refused before a process group exists (ConfigError)."""
    sizes = layout(config, place.world_size)
    from harness.trainer import data, mesh

    batches = data.Batches(
        data.tokens(config.data.path, config.model.vocab),
        seq_len=config.model.seq_len,
        global_batch=config.data.global_batch,
        seed=config.run.seed,
    )
    check_folder(config)
    device = mesh.choose_device(config, place)
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
        mesh.join(start.device, place, config)
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
