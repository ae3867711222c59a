# One rank finds an overflow now and then, and all leave out the step together.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(80):
    model(torch.randn(4, 32)).square().mean().backward()
    overflow = torch.tensor(float(rank == 2 and step % 9 == 8))
    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    if not overflow:
        optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
dist.destroy_process_group()
