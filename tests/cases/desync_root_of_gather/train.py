# One rank of two gathers the metrics itself.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(30):
    metrics = torch.ones(4)
    target = rank if step >= 9 else 0
    parts = [torch.empty(4) for _ in range(world)] if rank == target else None
    dist.gather(metrics, parts, dst=target)
    time.sleep(0.05)
dist.destroy_process_group()
