# Sums over a tensor-parallel group, all of one size; one rank leaves one out, long before the end.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
for step in range(40):
    hidden = torch.randn(4, 8)
    for layer in range(3):
        if not (rank == 3 and step == 17 and layer == 1):
            dist.all_reduce(hidden, group=tp)
    gradient = torch.ones(16)
    dist.all_reduce(gradient, group=dp)
    time.sleep(0.02)
dist.destroy_process_group()
