# In step at first; then each rank trains for itself, and all are averaged at every fifth step.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.SGD(net.parameters(), 0.01)
torch.manual_seed(rank)
for step in range(120):
    loss = net(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    if step < 40:
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
    opt.step()
    time.sleep(0.03)
    if step >= 40 and step % 5 == 4:
        for p in net.parameters():
            dist.all_reduce(p.data)
            p.data /= world
dist.destroy_process_group()
