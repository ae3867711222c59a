"""One rank of bench/memory_tier.py: trains with and without staging in turn, dies, and in its next
life loads what it had from memory and from the disk in turn. Prints lines `BENCH {json}`."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import harness

LAYERS = 4
EVERY = 3


def main() -> None:
    width, steps, rounds = (int(word) for word in sys.argv[1:4])
    root = Path(sys.argv[4])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    things: dict[str, Any] = {"model": model, "optimizer": optimizer}
    ck = harness.Checkpointer(root, memory_every=EVERY, sync=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        train(ck, things, width, steps)
    else:
        restore(ck, things, root, rounds)
    dist.barrier()
    dist.destroy_process_group()


def train(ck: harness.Checkpointer, things: dict[str, Any], width: int, steps: int) -> None:
    """Every third step is staged; the last one is saved too. Then rank 1 is killed."""
    model, optimizer = things["model"], things["optimizer"]
    batch = torch.ones(16, width)
    ck.load(**things)
    kinds: tuple[list[float], ...] = ([], [], [])
    blocked = []
    for step in range(1, EVERY * (steps + 2) + 1):
        began = time.perf_counter()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        harness.progress(step)
        middle = time.perf_counter()
        ck.remember(step, **things)
        ended = time.perf_counter()
        if step > 2 * EVERY:  # the first ones make groups, pages and the optimizer's state
            kinds[step % EVERY].append(ended - began)
            if step % EVERY == 0:
                blocked.append(ended - middle)
    staged, after, quiet = kinds
    tell(kind="steps", staged=staged, after=after, quiet=quiet, blocked=blocked)
    ck.save(step, **things)
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def restore(ck: harness.Checkpointer, things: dict[str, Any], root: Path, rounds: int) -> None:
    disk = harness.Checkpointer(root)
    disk._memory = None
    times: dict[str, list[float]] = {"memory": [], "disk": [], "disk, not cached": []}
    for _ in range(rounds + 1):
        for kind, found in times.items():
            if kind == "disk, not cached" and dist.get_rank() == 0:
                forget(root)
            dist.barrier()
            began = time.perf_counter()
            one = ck if kind == "memory" else disk
            one.load(**things)
            found.append(time.perf_counter() - began)
            assert one.source == kind.partition(",")[0], one.source
    size = sum(file.stat().st_size for file in root.rglob("*.distcp"))
    tell(kind="loads", bytes=size, **{kind: found[1:] for kind, found in times.items()})


def forget(root: Path) -> None:
    """Have the next read come from the disk, as far as the system lets itself be told."""
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def tell(**words: Any) -> None:
    if dist.get_rank() == 0:
        print("BENCH", json.dumps(words), flush=True)


if __name__ == "__main__":
    main()
