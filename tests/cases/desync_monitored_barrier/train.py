# Rank 2 leaves out the monitored barrier that the others pass before each evaluation.
import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    dist.all_reduce(torch.ones(16))
    if step % 4 == 3 and not (rank == 2 and step == 7):
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=12))
    time.sleep(0.08)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
