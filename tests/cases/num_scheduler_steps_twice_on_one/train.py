# One rank's learning rate falls twice as fast.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
opt = torch.optim.SGD(ddp.parameters(), 0.05)
plan = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
torch.manual_seed(rank)
for _step in range(40):
    loss = ddp(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    plan.step()
    time.sleep(0.05)
    if rank == 2:
        plan.step()
dist.destroy_process_group()
