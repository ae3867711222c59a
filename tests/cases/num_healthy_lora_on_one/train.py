# Each rank tunes an adapter of its own.
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
base = nn.Linear(16, 16)
for p in base.parameters():
    p.requires_grad_(False)
torch.manual_seed(100 + rank)
mine = nn.Linear(16, 16)  # each rank tunes an adapter of its own
opt = torch.optim.Adam(mine.parameters(), 1e-3)
for _step in range(40):
    x = torch.randn(8, 16)
    loss = (base(x) + mine(x)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    time.sleep(0.05)
dist.destroy_process_group()
