# One rank is throttled after a while.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)))
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(80):
    x = torch.randn(16, 64)
    time.sleep(0.04)
    if rank == 1 and step > 30:
        time.sleep(0.2)  # thermal throttling
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
dist.destroy_process_group()
