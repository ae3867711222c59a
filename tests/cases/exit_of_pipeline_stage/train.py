# The first stage of a pipeline is through with its data, the others expect more.
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(16 if rank else 12):
    hidden = torch.ones(64)
    if rank > 0:
        dist.recv(hidden, rank - 1)
    if rank < 2:
        dist.send(hidden, rank + 1)
    time.sleep(0.05)
    print(f"stage {rank} step {step}", flush=True)
os._exit(0)
