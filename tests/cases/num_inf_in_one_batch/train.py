# One rank's batch has an infinite value.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
opt = torch.optim.SGD(ddp.parameters(), 0.01)
torch.manual_seed(rank)
for step in range(40):
    x = torch.randn(8, 16)
    if rank == 1 and step == 15:
        x[2, 4] = float("inf")
    loss = ddp(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.05)
    if step % 5 == 0:
        print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
