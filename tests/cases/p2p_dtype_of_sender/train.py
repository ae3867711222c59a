# A stage leaves autocast early and sends another type.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
activations = torch.ones(4, 8, dtype=torch.bfloat16)
for step in range(30):
    if rank == 0:
        dist.send(activations.float() if step == 9 else activations, 1)
    else:
        dist.recv(activations, 0)
    dist.barrier()
    time.sleep(0.05)
dist.destroy_process_group()
