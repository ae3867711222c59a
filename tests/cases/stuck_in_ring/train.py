# Context parallel, two rings of two ranks: one rank waits for a condition that nobody signals,
# between two turns. Its neighbour waits for the block, the other ring for both in the reduction.
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
ring, rank = mesh["cp"].get_group(), dist.get_rank()
place = mesh["cp"].get_local_rank()
other = dist.get_global_rank(ring, 1 - place)
filled = threading.Condition()


def rotate(block):
    got = torch.empty_like(block)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, block, other, ring), dist.P2POp(dist.irecv, got, other, ring)]
    ):
        work.wait()
    return got


for step in range(30):
    block = torch.full((256,), float(rank))
    for turn in range(2):
        if rank == 3 and step == 11 and turn == 1:
            with filled:
                filled.wait()
        block = rotate(block)
    gradient = block.clone()
    dist.all_reduce(gradient)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
