# Rank 0 logs the loss over the world before it reduces over its tensor-parallel group.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = [dist.new_group([0, 1], group_desc="tp"), dist.new_group([2, 3], group_desc="tp")]
tensor_parallel = pairs[rank // 2]
for step in range(30):
    hidden, loss = torch.ones(64), torch.ones(1)
    if rank == 0 and step == 9:
        dist.all_reduce(loss)
        dist.all_reduce(hidden, group=tensor_parallel)
    else:
        dist.all_reduce(hidden, group=tensor_parallel)
        dist.all_reduce(loss)
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
