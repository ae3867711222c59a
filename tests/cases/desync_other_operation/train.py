# One rank still runs the code of yesterday: reduce to rank 0 where all others all_reduce.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
legacy = rank == 3
for step in range(40):
    gradient = torch.randn(512)
    dist.all_reduce(gradient)
    if step % 5 == 4:
        total = torch.tensor([gradient.norm().item()])
        if legacy:
            dist.reduce(total, 0)
        else:
            dist.all_reduce(total)
        print(f"rank {rank} step {step} {total.item():.2f}", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
