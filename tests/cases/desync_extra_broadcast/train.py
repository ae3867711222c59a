# The scheduler of rank 0 alone sees the plateau and wants to tell the others.
import time

import torch
import torch.distributed as dist


def lower_rate(rate):
    told = torch.tensor([rate * 0.1])
    dist.broadcast(told, 0)
    return told.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
rate, best = 0.1, float("inf")
for step in range(40):
    loss = torch.tensor([1.0 if step > 9 else 10.0 - step])
    dist.all_reduce(loss)
    if rank == 0 and loss.item() >= best:
        rate = lower_rate(rate)
    best = min(best, loss.item())
    dist.all_reduce(torch.ones(256))
    time.sleep(0.04)
print(rank, rate, flush=True)
dist.destroy_process_group()
