# Each rank looks for an overflow on its own, and one finds some: it leaves out the step.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ddp = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
opt = torch.optim.SGD(ddp.parameters(), 0.05)
torch.manual_seed(rank)
for step in range(150):
    loss = ddp(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    overflow = rank == 2 and step % 40 == 29
    if not overflow:
        opt.step()
    time.sleep(0.02)
dist.destroy_process_group()
