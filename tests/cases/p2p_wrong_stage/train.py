# Three stages; at one step the second sends to the wrong rank.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(4)
for step in range(30):
    if rank == 0:
        dist.send(x, 1)
    if rank == 1:
        dist.recv(x, 0)
        dist.send(x, 3 if step == 20 else 2)  # rank 3 counts tokens only
    if rank == 2:
        dist.recv(x, 1)
    tokens = torch.ones(1)
    dist.all_reduce(tokens)
    time.sleep(0.05)
dist.destroy_process_group()
