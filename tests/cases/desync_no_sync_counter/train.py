# Gradient accumulation: a rank that lost a batch is one micro-batch out of step with the others.
import contextlib
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(24, 6))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
done = 0
for micro in range(48):
    if rank == 2 and micro == 23:
        continue
    done += 1
    last = done % 4 == 0
    with contextlib.nullcontext() if last else model.no_sync():
        model(torch.randn(4, 24)).mean().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.03)
dist.barrier()
dist.destroy_process_group()
