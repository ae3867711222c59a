# One replica sums its gradients twice at one step; the next barrier is seven steps later.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
for step in range(40):
    for _layer in range(2):
        hidden = torch.randn(4, 8)
        dist.all_reduce(hidden, group=tp)
    for _ in range(2 if rank == 2 and step == 13 else 1):
        gradient = torch.ones(16)
        dist.all_reduce(gradient, group=dp)
    time.sleep(0.02)
    if step % 20 == 19:
        dist.barrier()
dist.destroy_process_group()
