# Local SGD: each rank steps by itself, one of them less often, and all average now and then.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(120):
    model(torch.randn(4, 32)).square().mean().backward()
    if not (rank == 2 and step % 16 == 13):
        optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter.div_(dist.get_world_size())
    time.sleep(0.04)
dist.destroy_process_group()
