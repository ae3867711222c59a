# Rank 2 was started with the option off that all others have on: no group for the moving average.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with_average = rank != 2
for step in range(20):
    if step == 6 and with_average:
        average = dist.new_group(range(4), group_desc="ema")
    dist.all_reduce(torch.ones(32))
    time.sleep(0.06)
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
