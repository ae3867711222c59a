# A pipeline of three stages with slow micro-batches: each stage waits most of the time.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    for _ in range(3):
        hidden = torch.ones(64)
        if rank > 0:
            dist.recv(hidden, rank - 1)
        until = time.time() + 0.8
        while time.time() < until:
            torch.randn(32, 32).inverse()
        if rank < 2:
            dist.send(hidden, rank + 1)
    dist.all_reduce(torch.ones(1))
    print(f"stage {rank} step {step}", flush=True)
dist.destroy_process_group()
