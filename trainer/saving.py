"""What a checkpoint holds beside model and optimizer, and into which folders it may go."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from harness.trainer.config import VOCAB, Config, ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from harness.trainer.assemble import Assembly
    from harness.trainer.optim import Noise


def shape(config: Config) -> dict[str, Any]:
    """What a checkpoint's tensors depend on."""
    mixture, found = config.experts, asdict(config.model)
    if config.model.vocab == VOCAB:  # as it was before there were others
        del found["vocab"]
    if mixture.experts:
        found |= {"experts": mixture.experts, "shared_expert": mixture.shared}
    return found


def extra(made: Assembly, noise: Noise) -> dict[str, Any]:
    """Numbers that a restart must find again, beside model and optimizer; only those in use."""
    found: dict[str, Any] = {}
    if made.scale.dynamic:
        found["loss_scale"] = [made.scale.value, made.scale.good]
    if made.float8 is not None:
        found["float8"] = list(made.float8.history)
    if noise.spread:
        found["noise"] = [noise.signal, noise.spread]
    return found


def restore(found: dict[str, Any], made: Assembly, noise: Noise) -> None:
    """What `extra` gave."""
    if "loss_scale" in found and made.scale.dynamic:
        made.scale.value, made.scale.good = found["loss_scale"]
    if made.float8 is not None:
        made.float8.history.extend(found.get("float8", []))
    noise.signal, noise.spread = found.get("noise", (0.0, 0.0))


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
    saved, asked = before.manifest.values.get("shape", {}), shape(config)
    for name in asked | saved:
        if saved.get(name) != asked.get(name):
            raise ConfigError(
                f"--checkpoint-dir {root}: step {before.step} was saved with {name} "
                f"{saved.get(name)}, this run has {asked.get(name)}; use that or another folder"
            )
