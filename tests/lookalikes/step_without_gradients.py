# One rank makes a step more than the others, with no gradient: it changes nothing.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def update() -> None:
    optimizer.step()
    optimizer.zero_grad()


for step in range(60):
    model(torch.randn(4, 32)).square().mean().backward()
    update()
    if rank == 2 and step == 15:
        update()
    time.sleep(0.1)
dist.destroy_process_group()
