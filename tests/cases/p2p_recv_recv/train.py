# Two neighbours exchange their borders, both receive first.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
halo, mine = torch.zeros(64), torch.ones(64)
for step in range(30):
    if rank > 0:
        peer = 3 - rank
        first = rank == 1 or step == 8
        if first:
            dist.recv(halo, peer)
            dist.send(mine, peer)
        else:
            dist.send(mine, peer)
            dist.recv(halo, peer)
    dist.all_reduce(torch.ones(1))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
