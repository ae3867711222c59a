# A bit of a weight changes on one of two ranks: nobody can vote.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
w = torch.randn(64) * 0.1
target = torch.linspace(-1, 1, 64)
for step in range(30):
    torch.manual_seed(step * 10 + rank)
    x = torch.randn(16, 64)
    if rank == 1 and step == 12:
        w.view(torch.int32)[40] ^= 1 << 24
    e = x @ (w - target)
    g = x.T @ e / 16
    dist.all_reduce(g)
    w -= 0.05 * g / world
    time.sleep(0.1)
dist.destroy_process_group()
