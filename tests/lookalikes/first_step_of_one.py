# One rank works eight seconds on its first step, the others wait for it in their first collective.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(256, 256)
for step in range(30):
    if rank == 2 and step == 0:
        until = time.time() + 8
        while time.time() < until:
            model(torch.randn(64, 256))
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
dist.destroy_process_group()
