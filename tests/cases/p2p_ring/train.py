# Ring attention: every rank waits for the block of its neighbour before it passes its own on.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % world, (rank - 1) % world
block = torch.full((256,), float(rank))
for step in range(30):
    incoming = torch.empty(256)
    if step < 7:
        sent = dist.isend(block, right)
        dist.recv(incoming, left)
        sent.wait()
    else:
        dist.recv(incoming, left)
        dist.send(block, right)
    block = incoming
    time.sleep(0.07)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
