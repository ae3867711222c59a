# Ranks 0 and 1 evaluate together in a group of their own, rank 2 waits for both.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
evaluators = dist.new_group([0, 1], group_desc="evaluators")
for step in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    if step == 15 and rank < 2:
        for _ in range(12):
            until = time.time() + 0.5
            while time.time() < until:
                torch.randn(64, 64).inverse()
            dist.all_reduce(torch.ones(1), group=evaluators)
dist.barrier()
dist.destroy_process_group()
