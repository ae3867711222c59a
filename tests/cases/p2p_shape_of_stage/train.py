# The last micro-batch of a stage is larger than the next stage expects.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
activations = torch.ones(4, 8)
for step in range(30):
    if rank == 0:
        dist.send(torch.ones(6, 8) if step == 9 else activations, 1)
    elif rank == 1:
        dist.recv(activations, 0)
        dist.send(activations, 2)
    else:
        dist.recv(activations, 1)
    time.sleep(0.05)
dist.destroy_process_group()
