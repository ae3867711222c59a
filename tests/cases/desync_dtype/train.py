# Mixed precision falls back to float32 on one rank.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(30):
    dtype = torch.float32 if rank == 1 and step >= 10 else torch.bfloat16
    gradient = torch.ones(300_000, dtype=dtype)
    dist.all_reduce(gradient)
    time.sleep(0.05)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
