# A group for monitoring that only ranks 0 and 2 use, once in a while.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
monitors = dist.new_group([0, 2], group_desc="monitors")
for step in range(120):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    if step % 40 == 10 and rank != 1:
        dist.all_reduce(torch.tensor([float(step)]), group=monitors)
dist.destroy_process_group()
