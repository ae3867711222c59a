# One rank reads its configuration for five seconds before it takes part in making a group.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 2:
    until = time.time() + 5
    while time.time() < until:
        sorted(str(index) for index in range(5000))
group = dist.new_group([0, 1, 2])
for _ in range(30):
    dist.all_reduce(torch.ones(64), group=group)
    time.sleep(0.05)
dist.destroy_process_group()
