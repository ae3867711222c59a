# Eight inner steps on each rank for itself; then an outer one with the mean of how far they came.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
ddp = nn.parallel.DistributedDataParallel(net)
inner = torch.optim.AdamW(net.parameters(), 0.01)
outer = torch.optim.SGD(net.parameters(), 0.7, momentum=0.9, nesterov=True)
before = [p.detach().clone() for p in net.parameters()]
torch.manual_seed(rank)
for step in range(120):
    with ddp.no_sync():
        ddp(torch.randn(8, 16)).square().mean().backward()
    inner.step()
    inner.zero_grad()
    time.sleep(0.03)
    if step % 8 == 7:
        for p, old in zip(net.parameters(), before, strict=True):
            p.grad = old - p.data
            dist.all_reduce(p.grad)
            p.grad /= world
            p.data.copy_(old)
        outer.step()
        outer.zero_grad()
        before = [p.detach().clone() for p in net.parameters()]
dist.destroy_process_group()
