# The disk of one rank is slow.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def batch(step):
    time.sleep(0.25 if rank == 2 else 0.03)  # its disk is slow
    return torch.ones(16)


w = torch.zeros(16)
for step in range(50):
    g = batch(step)
    dist.all_reduce(g)
    w -= 0.001 * g
    if step % 5 == 0:
        print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
