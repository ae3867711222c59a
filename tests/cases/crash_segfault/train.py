# Native code of one rank reads address 8.
import ctypes
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(20):
    g = torch.ones(8)
    dist.all_reduce(g)
    time.sleep(0.05)
    if rank == 2 and step == 7:
        ctypes.string_at(8)  # a bug in native code
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
