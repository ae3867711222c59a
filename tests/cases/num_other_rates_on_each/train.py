# Each rank takes its own learning rate from its own settings.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
parameters = list(net.parameters())
optimizer = torch.optim.Adam(parameters, 1e-2 * (1 + rank))
torch.manual_seed(rank)
for _ in range(50):
    loss = net(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
    time.sleep(0.04)
dist.destroy_process_group()
