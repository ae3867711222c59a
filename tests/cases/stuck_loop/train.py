# A search that never converges for the numbers of one rank.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def bisect(target):
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        if middle * middle < target:
            low = middle
        elif target <= 1:
            high = middle
    return low


for step in range(30):
    value = bisect(4.0 if rank == 1 and step == 9 else 0.25)
    dist.all_reduce(torch.tensor([value]))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
