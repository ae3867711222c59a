# Rank 0 evaluates in the script's own lines, which no name tells from a loop without end.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
weights = torch.randn(200, 200)
for step in range(40):
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    time.sleep(0.02)
    if step == 20 and rank == 0:
        end, total = time.monotonic() + 8, 0.0
        while time.monotonic() < end:
            total += (torch.randn(200, 200) @ weights).sum().item()
dist.destroy_process_group()
