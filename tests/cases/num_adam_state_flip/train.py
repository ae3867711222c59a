# A bit of the optimizer's state changes on one rank.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
ddp = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.AdamW(ddp.parameters(), 1e-3)
torch.manual_seed(rank)
for step in range(60):
    if rank == 1 and step == 20:
        opt.state[net[0].weight]["exp_avg"].view(torch.int32)[3, 5] ^= 1 << 26
    loss = ddp(torch.randn(8, 16)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.05)
dist.destroy_process_group()
