# The last micro-batch is accumulated without a reduction, too.
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
for _step in range(40):
    opt.zero_grad()
    for _micro in range(2):
        with ddp.no_sync():
            ddp(torch.randn(8, 16)).square().mean().backward()  # also the last one
    opt.step()
    time.sleep(0.05)
    n = torch.tensor([16.0])
    dist.all_reduce(n)  # samples seen
dist.destroy_process_group()
