"""What the checks of a rank's own numbers cost: `python bench/audits.py [--steps N]`.

One training on Gloo, with the checks at work in every other window of steps: the figure is the CPU
time of the main thread, a window with them against the one right before it without. Wall time says
little on a machine that others use. Replays are counted apart: each is one forward and backward pass
more, once in `--replays` steps or less often.
"""

import argparse
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

PROGRAM = """
    import statistics, sys, time, torch, torch.distributed as dist
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    from harness.worker.guest import current
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    width, depth, steps, kept = (int(word) for word in sys.argv[1:])
    WINDOW = 8

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(depth))
        def forward(self, x):
            for layer in self.layers:
                x = x + (layer(x) if kept else checkpoint(layer, x, use_reentrant=False))
            return x

    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    auditor = current().auditor
    here, costs = auditor._pid, []
    for window in range(steps // WINDOW):
        auditor._pid = here if window % 2 else -1
        began = time.thread_time()
        for step in range(WINDOW):
            optimizer.zero_grad()
            model(torch.randn(128, width)).square().mean().backward()
            optimizer.step()
        costs.append((time.thread_time() - began) / WINDOW)
    pairs = [on / off - 1 for off, on in zip(costs[4::2], costs[5::2])]
    if dist.get_rank() == 0:
        size = sum(p.numel() for p in model.parameters())
        spread = statistics.quantiles(pairs, n=4)
        print(f"{'plain' if kept else 'checkpointed'}: {size / 1e6:.1f} M parameters,"
              f" {statistics.median(costs) * 1e3:.0f} ms of CPU a step, {len(pairs)} pairs:"
              f" {statistics.median(pairs):+.2%}, quartiles {spread[0]:+.2%} and {spread[2]:+.2%};"
              f" {auditor.recomputes.looks} blocks looked at")
    dist.destroy_process_group()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    for kept in ("1", "0"):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(textwrap.dedent(PROGRAM))
            line = [sys.executable, "-m", "harness", "run", "--nproc-per-node", "2"]
            line += ["--digests", "0", "--replays", "0", str(script)]
            line += ["384", "5", str(asked.steps), kept]
            subprocess.run(line, cwd=folder, check=True)
            for log in sorted(Path(folder).glob("runs/latest/logs/attempt0/rank00000.log")):
                print(log.read_text().strip(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
