"""What a checkpoint costs: how long training stands still for it, beside a save that it waits for
and beside torch.distributed.checkpoint alone, in one run; and how fast the digest is.

`python bench/checkpoint.py [--width N] [--rounds N] [--dir DIR] [--write]`: one process, then two
Gloo ranks that shard with FSDP2. Model and AdamW in single precision. Kinds of save take turns, so
that drift hits all alike; figures are medians. `--write` puts the tables into
bench/results/checkpoint.md.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results") / "checkpoint.md"
ROOT = Path(__file__).resolve().parents[1]
LAYERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024, help="of the model's layers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", help="where to write; default: the folder for temporary files")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(json.dumps(be_rank(json.loads(options.rank))))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        saves = {n: launch(n, options.width, options.rounds, folder) for n in (1, 2)}
    text = table(options, saves, speeds())
    print(text)
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text + "\n", encoding="utf-8")


def launch(ranks: int, width: int, rounds: int, folder: str) -> dict[str, Any]:
    """Run all ranks; the figures of rank 0."""
    job = {"ranks": ranks, "width": width, "rounds": rounds, "folder": f"{folder}/{ranks}"}
    os.makedirs(job["folder"])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as out:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", json.dumps({**job, "rank": rank})],
                env=environ,
                stdout=out if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(ranks)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit(f"a rank failed: exit codes {codes}")
        out.seek(0)
        figures: dict[str, Any] = json.loads(out.read())
        return figures


def be_rank(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    import harness

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(job["folder"])
    store = dist.FileStore(str(folder / "store"), job["ranks"])
    dist.init_process_group("gloo", store=store, rank=job["rank"], world_size=job["ranks"])
    layers = [torch.nn.Linear(job["width"], job["width"]) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    if job["ranks"] > 1:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(4, job["width"])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    ours = harness.Checkpointer(folder / "ours", keep=1)
    number = iter(range(1, 1_000_000))
    plain = folder / "plain"

    def state() -> dict[str, Any]:
        parts = get_state_dict(model, optimizer)
        return {"model": parts[0], "optimizer": parts[1]}

    def in_background() -> None:
        pending.append(ours.save(next(number), model=model, optimizer=optimizer))

    def dcp_in_background() -> None:
        pending.append(dcp.async_save(state(), checkpoint_id=plain, process_group=own))

    pending: list[Any] = []
    own = dist.new_group(backend="gloo")
    kinds: dict[str, Callable[[], object]] = {
        "async": in_background,
        "sync": lambda: ours.save(next(number), sync=True, model=model, optimizer=optimizer),
        "dcp": lambda: dcp.save(state(), checkpoint_id=plain),
        "dcp_async": dcp_in_background,
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(job["rounds"] + 1):
        for kind, save in kinds.items():
            dist.barrier()
            began = time.perf_counter()
            save()
            times[kind].append(time.perf_counter() - began)
            ours.wait()
            if pending and hasattr(pending[-1], "result"):
                pending[-1].result()
            pending.clear()
            if job["rank"] == 0:
                shutil.rmtree(plain, ignore_errors=True)
            step()
    size = sum(p.numel() for p in model.parameters()) * 3 * 4
    dist.barrier()
    dist.destroy_process_group()
    # The first of each makes groups, plans and memory; it is shown apart.
    medians = {kind: statistics.median(values[1:]) for kind, values in times.items()}
    return {"bytes": size, "first": times["async"][0], **medians}


def speeds() -> dict[str, float]:
    """Bytes per second of the digest and of what it stands beside, on one thread."""
    import torch

    from harness.sdk.checkpoint.digest import digest

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    flat = torch.randn(1 << 24)
    square = flat.view(1 << 12, 1 << 12)
    half = flat.to(torch.bfloat16)
    words, copy = flat.view(torch.int64), torch.empty_like(flat)
    content = bytes(flat.view(torch.uint8).numpy())

    def fastest(act: Callable[[], object], size: int) -> float:
        best = min(_timed(act) for _ in range(5))
        return size / best

    return {
        "plain read (sum of 64-bit words)": fastest(words.sum, flat.nbytes),
        "copy in memory (staging)": fastest(lambda: copy.copy_(flat), flat.nbytes),
        "digest, float32, 4096 x 4096": fastest(lambda: digest(square), flat.nbytes),
        "digest, float32, one dimension": fastest(lambda: digest(flat), flat.nbytes),
        "digest, bfloat16": fastest(lambda: digest(half), half.nbytes),
        "SHA-256 (files)": fastest(lambda: hashlib.sha256(content).digest(), flat.nbytes),
        "CRC-32, for comparison": fastest(lambda: zlib.crc32(content), flat.nbytes),
    }


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def table(
    options: argparse.Namespace, saves: dict[int, dict[str, Any]], fast: dict[str, float]
) -> str:
    import torch

    read = next(iter(fast.values()))
    rows = [
        f"| {ranks}{' (FSDP2)' if ranks > 1 else ''} | {f['bytes'] / 1e6:.0f} | {f['sync']:.3f} "
        f"| {f['async']:.4f} | {f['async'] / f['sync']:.1%} | {f['first']:.3f} | {f['dcp']:.3f} "
        f"| {f['dcp_async']:.3f} |"
        for ranks, f in saves.items()
    ]
    lines = [f"| {name} | {v / 1e6:.0f} | {v / read:.2f} |" for name, v in fast.items()]
    return "\n".join(
        [
            "# Cost of a checkpoint",
            "",
            f"`python bench/checkpoint.py --width {options.width} --rounds {options.rounds}`: "
            f"Python {platform.python_version()}, torch {torch.__version__},",
            f"{os.cpu_count()} cores, one thread a rank. Seconds that training stands still, "
            "medians; kinds of save take turns in one run.",
            "",
            "| ranks | MB saved | sync | async | async / sync | first async | DCP alone, sync "
            "| DCP alone, async |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "Ours are verified: each file has a SHA-256, each tensor a digest; all is on the disk.",
            "DCP alone has none of that.",
            "",
            "Speed on one thread:",
            "",
            "| what | MB/s | of plain read |",
            "|---|---|---|",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
