# One rank gives a service six seconds to come up before the first step.
import time

import torch
import torch.distributed as dist


def warmup(seconds):
    time.sleep(seconds)


dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    warmup(6)
for _ in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
