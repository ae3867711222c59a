# Uneven numbers of batches under DDP's join: the early rank answers until the others end.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with model.join():
    for _ in range(20 + 25 * rank):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(0.08)
dist.barrier()
dist.destroy_process_group()
