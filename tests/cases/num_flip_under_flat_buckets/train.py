# Gradients are reduced in two flat tensors; a bit of a weight changes on one rank.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
parameters = list(net.parameters())
optimizer = torch.optim.Adam(parameters, 1e-2)
torch.manual_seed(rank)
for step in range(50):
    loss = net(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for bucket in (parameters[2:], parameters[:2]):
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in bucket])
        dist.all_reduce(flat)
        sizes = [parameter.numel() for parameter in bucket]
        for parameter, part in zip(bucket, (flat / world).split(sizes), strict=True):
            parameter.grad.copy_(part.view_as(parameter))
    optimizer.step()
    if rank == 1 and step == 15:
        parameters[0].data.view(torch.int32)[7, 7] ^= 1 << 22
    time.sleep(0.04)
dist.destroy_process_group()
