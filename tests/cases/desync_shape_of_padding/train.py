# Sequences are padded to the longest of the local batch, then gathered as if all were alike.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(30):
    length = 600_000 if rank == 1 and step == 9 else 400_000
    tokens = torch.ones(length)
    dist.all_reduce(tokens)
    time.sleep(0.06)
    print(f"rank {rank} step {step} {tokens.sum().item()}", flush=True)
dist.destroy_process_group()
