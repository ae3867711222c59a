# Reductions that take long and move all the time.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
gradient = torch.ones(50_000_000)
began = time.time()
for step in range(6):
    dist.all_reduce(gradient)
    gradient.fill_(1.0)
    print(f"rank {rank} step {step} at {time.time() - began:.1f} s", flush=True)
dist.destroy_process_group()
