# The garbage collector of one rank stops it for some seconds.
import gc
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
kept = []
for step in range(30):
    dist.all_reduce(torch.ones(64))
    time.sleep(0.06)
    kept.append([{"step": step, "at": [index]} for index in range(20_000)])
    if rank == 1 and step == 10:
        until = time.time() + 2.5
        while time.time() < until:
            gc.collect()
dist.destroy_process_group()
