# Counts as integers on one rank, as floats on the others: equal in bytes, so Gloo adds them up.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(40):
    counts = torch.ones(64, dtype=torch.int32 if rank == 1 and step >= 9 else torch.float32)
    dist.all_reduce(counts)
    time.sleep(0.1)
    print(f"rank {rank} step {step} {counts[0].item()}", flush=True)
dist.destroy_process_group()
