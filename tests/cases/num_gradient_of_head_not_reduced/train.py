# The head was added later, and the loop that reduces gradients does not know of it.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
body, head = nn.Linear(16, 16), nn.Linear(16, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.01)
torch.manual_seed(rank)
for _step in range(40):
    loss = head(body(torch.randn(8, 16)).tanh()).square().mean()
    opt.zero_grad()
    loss.backward()
    for parameter in body.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    opt.step()
    time.sleep(0.05)
dist.destroy_process_group()
