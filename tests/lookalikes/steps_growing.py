# Every step takes longer than the one before: sequences grow.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(18):
    until = time.time() + 0.05 * 1.25**step
    while time.time() < until:
        torch.randn(32, 32).inverse()
    dist.all_reduce(torch.ones(64))
    print(f"step {step}", flush=True)
dist.destroy_process_group()
