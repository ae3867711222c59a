# Eight micro-batches without any collective between two reductions.
import contextlib
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for micro in range(64):
    last = micro % 8 == 7
    with contextlib.nullcontext() if last else model.no_sync():
        model(torch.randn(4, 32)).mean().backward()
    time.sleep(0.15)
    if last:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
