# Metrics travel as Python objects; rank 0 draws its plots in between.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def plot(told, seconds):
    until = time.time() + seconds
    while time.time() < until:
        str(told)


for step in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    if step % 10 == 9:
        told = [None] * world if rank == 0 else None
        dist.gather_object({"rank": rank, "loss": 1.0 / (step + 1)}, told)
        if rank == 0:
            plot(told, 3)
dist.destroy_process_group()
